"""The events that every role of a node hears."""

from __future__ import annotations

from vlsn.ids import Vlsn
from vlsn.write.queue import Pending


class Role:
    """A node's part at the moment: returning, founding, leading or following."""

    async def run(self) -> None:
        """Runs until the role is over, or cancelled."""
        raise NotImplementedError

    def sealed(self, pendings: list[Pending]) -> None:
        raise AssertionError(f"{type(self).__name__}: only a master seals")

    def handed_over(self) -> None:
        """Hears that another group is with the writer."""

    def synced(self, last_vlsn: Vlsn) -> None:
        """Hears that everything up to ``last_vlsn`` is synced here."""

    def tick(self) -> None:
        """Does what is due every ``node.TICK_S``."""
