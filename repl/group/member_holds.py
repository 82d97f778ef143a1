"""Holds for the other members, on every node of the group: the entries of this log that they still need.

    the master    knows each replica's acknowledgements: it holds from there on, fed or not; all there is for one that
                  nobody has heard of
    a replica     holds from where the master says in its hellos, so that a change of master loses nothing that an
                  absent member needs; it begins its own lead with these positions

1. A replica's position is its acknowledged end, as far as that is durable: no later master rolls it back. The master's
   own position is its durable end. So the position of an incarnation only rises.
2. A position is of an incarnation: another one under that name has not said how far it is.
3. Each node drops a hold by its own ``hold_bytes_max``; the master reports a dropped hold no more, and its replicas
   drop it too.

Source: JE keeps the replicas' positions on every node for the same reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from repl.group.founding import HoldPosition, listed_incarnation, parse_hex
from vlsn.errors import Trimmed
from vlsn.format.records import GroupEntry
from vlsn.ids import NULL_VLSN, Vlsn
from vlsn.state.holds import Hold, Owner
from vlsn.write.local_log import LocalLog

Dropped = Callable[[str, Vlsn], None]


class MemberHolds:
    """The holds for members, for the life of an open log. ``on_dropped`` gets a member's name and the first VLSN that
    will be left."""

    def __init__(self, log: LocalLog, own: str, on_dropped: Dropped) -> None:
        self.known = False
        """A master has said how far the members are, or this node is the master: it may clean."""
        self._log = log
        self._own = own
        self._on_dropped = on_dropped
        self._held: dict[str, Hold] = {}
        self._incarnations: dict[str, int] = {}
        """The incarnation whose position it is; 0 where nobody knows, and all there is is held."""

    # As the master.

    def lead(self, group: GroupEntry | None) -> None:
        """Begins a lead: a position of another incarnation than the one listed says nothing."""
        for name in sorted(self._held):
            if self._incarnations[name] not in (0, listed_incarnation(group, name)):
                self._place(name, NULL_VLSN, 0)

    def follow(self, group: GroupEntry) -> None:
        """Follows a change of members. A new member's position is unknown at first; a removed member holds nothing."""
        self.known = True
        names = {member.name for member in group.members} - {self._own}
        for name in sorted(names - set(self._held)):
            self._place(name, NULL_VLSN, 0)
        self._release(set(self._held) - names)

    def matched(self, replica: str, incarnation: int, at: Vlsn) -> None:
        """Notes that ``replica`` has everything up to ``at``, the end of a block. Raises ``Trimmed``."""
        self._place(replica, at, incarnation)

    def acknowledged(self, replica: str, synced: Vlsn) -> None:
        if replica in self._held:
            self._held[replica].advance(synced)

    def told(self) -> dict[str, HoldPosition]:
        """Makes what this master's answers to hellos say."""
        log = self._log
        positions = {
            name: HoldPosition(f"{incarnation:016x}", min(hold.vlsn, log.view.dtvlsn) if incarnation else 0)
            for name, hold in self._held.items()
            for incarnation in [self._incarnations[name]]
            if hold.live
        }
        own = HoldPosition(f"{log.node_file.record.incarnation:016x}", log.view.dtvlsn)
        return {**positions, self._own: own}

    # As a replica.

    def hear(self, positions: Mapping[str, HoldPosition] | None) -> None:
        """Takes a master's word on the positions of members; None comes from a release that shares nothing."""
        self.known = True
        if positions is None:
            return
        for name, position in sorted(positions.items()):
            if name == self._own:
                continue
            hold, incarnation = self._held.get(name), parse_hex(position.incarnation)
            if hold is not None and hold.live and incarnation == self._incarnations[name]:
                hold.advance(Vlsn(position.vlsn))
                continue
            try:
                self._place(name, Vlsn(position.vlsn), incarnation)
            except Trimmed:
                self._release({name})  # it was dropped here, or is further back than this log begins
        self._release(set(self._held) - set(positions))

    # Both.

    def _place(self, name: str, at: Vlsn, incarnation: int) -> None:
        self._held[name] = self._log.care.holds.place(
            Owner.FEEDER, name, at, on_dropped=partial(self._on_dropped, name)
        )
        self._incarnations[name] = incarnation

    def _release(self, names: set[str]) -> None:
        for name in sorted(names):
            hold = self._held.pop(name, None)
            if hold is not None:
                self._log.care.holds.release(hold)


def overtaken(replica: str, first: Vlsn) -> Trimmed:
    """Makes the error that a feed ends with whose hold was dropped."""
    return Trimmed(
        f"the log was cleaned past what {replica} has; it begins at {first}, and needs a network restore", first=first
    )
