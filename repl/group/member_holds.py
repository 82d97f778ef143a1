"""Holds for the other members, on every node of the group. A hold keeps the entries that a member still needs from
cleaning.

    the master    knows each replica's acknowledgements. It holds the log from there on, whether the replica is fed or
                  not; it holds the whole log for a replica that has not acknowledged yet
    a replica     holds the log from the positions in the master's answers, so that a change of master loses no entry
                  that an absent member needs; as the next master it begins with these positions

1. A replica's position is the end that it has acknowledged, as far as it is durable. No later master rolls back durable
   entries. The master's own position is its durable end. So the position of an incarnation (store of a node) only
   rises.
2. A position belongs to an incarnation. Another incarnation under the same name has not reported a position.
3. Each node drops a hold by its own setting ``hold_bytes_max``. The master no longer reports a dropped hold, so its
   replicas then drop it too.

Source: JE (Berkeley DB Java Edition) keeps the replicas' positions on every node for the same reason.
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
    """The holds for the other members, while one log is open. ``on_dropped`` is called with a member's name, and with
    the first VLSN that the log will still have."""

    def __init__(self, log: LocalLog, own: str, on_dropped: Dropped) -> None:
        self.known = False
        """True once a master has reported the members' positions, or while this node is the master. A node may clean
        its log only if this is True."""
        self._log = log
        self._own = own
        self._on_dropped = on_dropped
        self._held: dict[str, Hold] = {}
        self._incarnations: dict[str, int] = {}
        """The incarnation to which each position belongs, by name. The incarnation 0 means that the position is not
        known; then the whole log is held."""

    # The master's calls.

    def lead(self, group: GroupEntry | None) -> None:
        """Begins a term as master. If the group now lists another incarnation for a name, the old position is
        discarded."""
        for name in sorted(self._held):
            if self._incarnations[name] not in (0, listed_incarnation(group, name)):
                self._place(name, NULL_VLSN, 0)

    def follow(self, group: GroupEntry) -> None:
        """Applies a change of members. A new member's position is unknown at first; a removed member holds nothing."""
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
        """Returns the positions of the members, for this master's answers to hellos."""
        log = self._log
        positions = {
            name: HoldPosition(f"{incarnation:016x}", min(hold.vlsn, log.view.dtvlsn) if incarnation else 0)
            for name, hold in self._held.items()
            for incarnation in [self._incarnations[name]]
            if hold.live
        }
        own = HoldPosition(f"{log.node_file.record.incarnation:016x}", log.view.dtvlsn)
        return {**positions, self._own: own}

    # A replica's calls.

    def hear(self, positions: Mapping[str, HoldPosition] | None) -> None:
        """Adopts the members' positions from the master's answer. ``positions`` is None if the master's release does
        not report positions."""
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
                self._release({name})  # this node has dropped the hold, or the log no longer has the member's position
        self._release(set(self._held) - set(positions))

    # Shared.

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
    """Makes the error for the feed of a replica whose hold was dropped."""
    return Trimmed(
        f"the log was cleaned past the end of {replica}, and begins at {first}: {replica} needs a network restore",
        first=first,
    )
