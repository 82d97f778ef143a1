"""The parts of a node that its CDC consumers use. Some exist as long as the node, others only while a log is open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from feeder.source import Offload as Reading
from repl.cdc.children import Children
from repl.cdc.position_stores import Begun, Offload
from repl.names.positions import NodePositions
from repl.read.reads import Reads
from vlsn.errors import Trimmed, VlsnLogError
from vlsn.ids import Vlsn, lsn_file
from vlsn.seams import Clock, Disk, Random
from vlsn.write.local_log import LocalLog


@dataclass(frozen=True, slots=True, kw_only=True)
class CdcNode:
    """The parts that exist as long as the node."""

    name: str
    group: str
    directory: str
    children: Children
    clock: Clock
    disk: Disk
    random: Random


@dataclass(frozen=True, slots=True, kw_only=True)
class CdcHost:
    """The parts that belong to one open log."""

    log: LocalLog
    reads: Reads
    reading: Reading
    """Runs reads of segments off the event loop."""
    storing: Offload[object]
    """Runs writes of positions off the event loop."""
    positions: NodePositions
    begun: Begun
    is_master: Callable[[], bool]

    @property
    def first(self) -> int:
        """The first VLSN that this log still has; 1 in an empty log."""
        return max(1, int(self.log.view.range.first))

    def vlsn_of(self, place: int | str) -> int:
        """Returns the VLSN for ``start``, ``end`` or a VLSN."""
        if place == "end":
            return int(self.reads.durable) + 1
        return self.first if place == "start" else int(place)

    def check_here(self, vlsn: int) -> None:
        """Raises ``Trimmed`` if ``vlsn`` was cleaned away."""
        if vlsn < self.first:
            first = Vlsn(self.first)
            raise Trimmed(f"VLSN {vlsn} was cleaned away; the first still here is {first}", first=first)

    def segment_of(self, vlsn: int) -> int:
        """Returns the number of the segment that has an entry, or 0 if the index does not have the entry."""
        try:
            mapping = self.log.view.index.at_or_before(Vlsn(vlsn))
        except VlsnLogError:
            return 0
        return lsn_file(mapping[1]) if mapping is not None else 0
