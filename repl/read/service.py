"""The reads that the gateway asks of its node.

The routes check what came from outside and turn it into these calls. The node answers in the types of ``repl.api``, or
raises one of ``vlsn.errors``, whose slug becomes the answer's type. Every call is made on the event loop's thread, and
none blocks it. A node listens before its log is open: until then, calls that need the log raise ``NotMaster``.
"""

from __future__ import annotations

from typing import Protocol

from repl.api import LINEARIZABLE, BlockPage, EntryPage, Freshness, ProducerAt, Spans
from repl.group.member import Member
from repl.read.read_index import ReadIndex
from repl.read.reads import Reads
from repl.read.spans import spans_of
from vlsn.errors import ProducersMissing
from vlsn.format.block import Entry
from vlsn.format.key_filter import KeyFilter
from vlsn.state.producers import ProducerPlace


class Confirming(Protocol):
    """Answers that are as new as is asked."""

    async def confirm(self, timeout_s: float, asked: Freshness = LINEARIZABLE) -> int: ...


class NodeReads:
    """Durable entries, and what a reader asks beside them."""

    def __init__(self, member: Member) -> None:
        self.member = member

    def end(self) -> int:
        """Returns the VLSN after the durable end, as far as this node knows it."""
        return self._reads().durable + 1

    def term_before(self, vlsn: int) -> int:
        """Returns the term of the entry before ``vlsn``; 0 where it is not there, or not durable."""
        return self._reads().term_before(vlsn)

    async def until(self, vlsn: int) -> None:
        """Returns once ``vlsn`` is durable here, for the maker of a page: soon, but not for all waiters in one turn of
        the loop. Raises ``NotMaster`` when the log is closed meanwhile."""
        await self._reads().until(vlsn)

    async def read(
        self,
        from_vlsn: int | None,
        *,
        limit: int,
        bytes_max: int,
        all_kinds: bool,
        keys: KeyFilter | None = None,
    ) -> EntryPage:
        """Reads visible entries from ``from_vlsn`` (``None``: the first there is) on, of these ``keys`` (``None``:
        all).

        At most ``limit`` entries and about ``bytes_max`` bytes, never less than one entry when one is
        there.  Entries above the durable end are never in it.
        ``next_vlsn`` moves past what was skipped (TERM, GROUP …).  With ``keys`` a page may be empty though
        ``next_vlsn`` is not past the durable end: so much was looked at for nothing.  Raises ``Trimmed``,
        ``Damaged``, ``Halted``.
        """
        return await self._reads().page(from_vlsn, limit=limit, bytes_max=bytes_max, all_kinds=all_kinds, keys=keys)

    async def read_blocks(self, from_vlsn: int | None, *, bytes_max: int) -> BlockPage:
        """Reads whole durable blocks from the one that holds ``from_vlsn`` on; raises as ``read`` does."""
        return await self._reads().blocks(from_vlsn, bytes_max=bytes_max)

    async def find_time(self, time_us: int) -> int:
        """Finds the first durable VLSN at which the highest block time so far is at or past ``time_us``, ``end`` where
        none is. Raises ``Damaged``, ``Lagging`` where the search takes long: asked again, it goes on."""
        return await self._reads().find_time(time_us)

    async def spans(
        self, from_vlsn: int | None, to_vlsn: int, *, bytes_each: int, entries_each: int, limit: int
    ) -> Spans:
        """Cuts what is durable of a range into spans (``repl.read.spans``). Raises ``Trimmed``, ``Damaged``."""
        log, durable = self.member.opened().log, self._reads().durable
        return await spans_of(
            log, durable, from_vlsn, to_vlsn, bytes_each=bytes_each, entries_each=entries_each, limit=limit
        )

    async def read_one(self, vlsn: int) -> Entry:
        """Raises ``NotYet``, ``NotData``, ``Trimmed``, ``Damaged``."""
        return await self._reads().one(vlsn)

    def check_place(self, vlsn: int, term: int) -> None:
        """Raises ``NotInLog`` when the log cannot hold, at ``vlsn``, the entry of ``term`` that a reader has seen."""
        self._reads().check_place(vlsn, term)

    async def confirm(self, timeout_s: float, asked: Freshness = LINEARIZABLE) -> int:
        """Returns a VLSN up to which reads here show the log, once that is as new as ``asked``. Raises ``NotMaster``
        when no majority confirms a master in time, ``Lagging`` when this node is not that far, and ``TooFarBehind``
        for a VLSN or a lag that was asked for."""
        return await self.member.opened().part(ReadIndex).confirm(timeout_s, asked)

    async def producer(self, producer: int, timeout_s: float) -> ProducerAt:
        """Returns that producer's place by the durable entries, confirmed and raising as ``confirm``."""
        await self.confirm(timeout_s)
        table, durable = self.member.opened().log.view.history.producers, self.member.opened().part(Reads).durable
        life = table.find(producer, at=durable + 1)
        place = life.as_of(durable) if life is not None else ProducerPlace()
        if table.lacks_to and not place.last:
            raise missing(f"producer {producer:016x}", table.lacks_to)
        return ProducerAt(place, durable, table.forgotten_to(at=durable + 1))

    def _reads(self) -> Reads:
        """Raises ``NotListed`` where this node is no member any more, and as ``Member.opened``."""
        opened = self.member.opened()
        self.member.check_listed()
        return opened.part(Reads)


def missing(what: str, lacks_to: int) -> ProducersMissing:
    return ProducersMissing(
        f"this node has lost what it knew of {what}, if it did, up to VLSN {lacks_to}; it asks the other members; "
        "nothing was logged, try again"
    )
