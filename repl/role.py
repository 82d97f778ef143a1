"""What every role of a node hears, unless it says otherwise."""

from __future__ import annotations

from vlsn.ids import Vlsn
from vlsn.write.queue import Pending


class Role:
    """What a node is at the moment: returning, founding, leading or following."""

    async def run(self) -> None:
        """Until the role is over, or cancelled."""
        raise NotImplementedError

    def sealed(self, pendings: list[Pending]) -> None:
        raise AssertionError(f"{type(self).__name__}: only a master seals")

    def handed_over(self) -> None:
        """Another group is with the writer."""

    def synced(self, last_vlsn: Vlsn) -> None:
        """Everything up to ``last_vlsn`` is synced here."""

    def tick(self) -> None:
        """Called every ``node.TICK_S``."""
