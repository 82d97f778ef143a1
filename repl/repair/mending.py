"""Mending on a node: a damaged block is replaced by any member's copy of the same block. No master is needed.

    met(Damaged) ─► wound found in that segment ─► GET /v1/peer/block of each member in turn ─► the segment is rewritten
    with the block in its place (``vlsn.repair.mending``) ─► checked again, until every frame is whole

1. During mending the node votes and acknowledges, fails reads of the damaged range with ``damaged``, and does not stand
   for election (``may_stand``). A master steps down if it must feed a block that no other node has (``unfit``).
2. Only a sealed segment is mended. If the current segment is damaged, the log first continues in a new segment.
3. Damage that no member can mend stays, is shown in the status, and is tried again every ``RETRY_S``. No member has a
   copy of a rollback's record or of a header page. If a rollback's record or a header page is damaged, the log is
   restored when a person requests it.
4. The damaged places of a segment are mended one after another. If other damaged places cannot be read from the disk,
   all places of the segment are mended together.
5. If two members have different contents under one block name, that is an integrity fault, and neither is overwritten.

A log that does not open because of damage is mended in the same way before it opens (``unopened``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from repl.group.member import Member, OpenMember
from repl.group.peers import get
from repl.offload import Offload, settle
from vlsn.errors import Damaged, IntegrityFault, NoSpace, NotFound, VlsnLogError
from vlsn.format.segment import parse_segment_name
from vlsn.ids import NodeName, Vlsn
from vlsn.repair.mended_copy import mend
from vlsn.repair.mending import Filling, Wound, find_wound
from vlsn.segments.bad_sectors import is_unread

T = TypeVar("T")
RETRY_S = 5.0
SEGMENTS_MAX = 1_000
"""The most damaged segments that are remembered. The scrub will find further damaged segments later."""


@dataclass(slots=True)
class Damage:
    """One damaged segment, as far as its damage is known."""

    number: int
    file: str
    offset: int
    vlsn: int
    since_s: float
    why: str = ""
    """The result of the last try to mend it."""


class Mending:
    """Mends one node's log while it is open. ``run`` never returns."""

    def __init__(self, opened: OpenMember) -> None:
        self.mended = 0
        """The number of blocks mended since the log was opened."""
        self.damages: dict[int, Damage] = {}
        self._opened = opened
        self._member = opened.member
        self._log = opened.log
        self._met = asyncio.Event()

    @property
    def may_stand(self) -> bool:
        """True while this node knows of no damage."""
        return not self.damages

    @property
    def unfit(self) -> str:
        """Why this node, as master, cannot make entries durable; "" if it can. The reason is a damaged block that it
        must feed and that no peer has. Members whose logs end before that block may be a majority, but no log continues
        after it."""
        durable = self._log.view.dtvlsn
        for damage in self.damages.values():
            if damage.why and damage.vlsn > durable:
                return f"VLSN {damage.vlsn} is damaged, and is not durable: no other member has it"
        return ""

    def status(self) -> list[dict[str, Any]]:
        """Returns the status of each damaged segment."""
        now = self._member.seams.clock.monotonic_s()
        return [
            {
                "file": damage.file,
                "offset": damage.offset,
                "vlsn": damage.vlsn,
                "age_s": round(now - damage.since_s, 3),
                "why": damage.why,
            }
            for damage in self.damages.values()
        ]

    def met(self, error: Damaged) -> None:
        """Notes damage that a reader has found. ``error`` names the file and the approximate offset."""
        number = parse_segment_name(error.file)
        if number is None or number in self.damages or len(self.damages) >= SEGMENTS_MAX:
            return
        if number not in self._log.view.segments():
            return  # the segment was cleaned away meanwhile
        self.damages[number] = Damage(
            number, error.file, error.offset, error.vlsn, self._member.seams.clock.monotonic_s()
        )
        self._member.event("damage", file=error.file, offset=error.offset, vlsn=error.vlsn)
        self._met.set()

    async def run(self) -> None:
        while True:
            await self._met.wait()
            self._met.clear()
            for damage in list(self.damages.values()):
                await self._try(damage)
            if self.damages:
                asyncio.get_running_loop().call_later(RETRY_S, self._met.set)

    async def _try(self, damage: Damage) -> None:
        """Mends one damaged segment, from its first damaged place to its last."""
        log, number, mended = self._log, damage.number, 0
        filled: list[Filling] = []
        try:
            if self._is_current(number):
                await self._rotate()
            if self._is_current(number):
                raise NoSpace(f"{damage.file} is still written to: there is no room for another segment")
            while number in log.view.segments():
                wound = await self._find(number, filled)
                if wound is None and not filled:
                    break
                if wound is not None:
                    damage.offset, damage.vlsn = wound.start, wound.first
                    if wound.start < mended:
                        raise Damaged(f"{damage.file} at {wound.start} was mended, and does not read back")
                    filled.append(await self._fill(wound))
                try:
                    await self._mend(number, filled)
                except OSError as error:
                    if wound is None or not is_unread(error):
                        raise
                    continue  # rule 4
                mended, filled = filled[-1].wound.end, []
        except (VlsnLogError, OSError, TimeoutError) as error:
            if damage.why != str(error):
                self._member.event("damage.stays", file=damage.file, offset=damage.offset, why=str(error))
            damage.why = str(error)
            return
        del self.damages[number]

    async def _find(self, number: int, filled: list[Filling]) -> Wound | None:
        log, end = self._log, self._log.view.synced_end(number)
        return await self._member.workers.offload("reads")(
            lambda: find_wound(log.seams.disk, log.directory, number, end, filled=filled)
        )

    async def _fill(self, wound: Wound) -> Filling:
        log = self._log
        stored = log.node_file.record.term
        log.placement.forget_sidecar(wound.number)
        return await fill(self._member, wound, lambda vlsn: log.view.history.term_of(vlsn), term_max=stored)

    async def _mend(self, number: int, filled: list[Filling]) -> None:
        log, member = self._log, self._member
        names = await self._alone(
            lambda: mend(log.seams.disk, log.directory, filled, free_bytes_min=log.options.free_bytes_min)
        )
        log.placement.give_back(number)
        for filling, kept in zip(filled, names, strict=True):
            self.mended += len(filling.frames)
            tell(member, filling, kept)

    async def _alone(self, job: Callable[[], T]) -> T:
        """Runs ``job`` on the keeper's thread, at a time when no checkpoint, rollback or cleaning runs."""
        held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        checkpointer = self._log.care.checkpointer

        def granted() -> None:
            if held.done():
                checkpointer.release()  # the waiting call was cancelled
            else:
                held.set_result(None)

        checkpointer.hold(granted)
        try:
            await held
            return await Offload(self._member.workers["keeper"])(job)
        finally:
            if not held.cancelled():
                checkpointer.release()

    def _is_current(self, number: int) -> bool:
        """Returns whether the segment is the one that is written to, or may still be."""
        return number >= max(self._log.placement.active_files()[:1], default=0)

    async def _rotate(self) -> None:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._log.cycle.rotate("request", settle(done))
        await done
        await self._opened.drained()


def tell(member: Member, filling: Filling, kept: str) -> None:
    """Reports the mended blocks by an event. ``kept`` is the file with the damaged bytes."""
    wound, last = filling.wound, filling.next_vlsn - 1
    member.event("mended", file=wound.name, offset=wound.start, first=wound.first, last=last, kept=kept)


async def fill(member: Member, wound: Wound, term_of: Callable[[Vlsn], int], *, term_max: int) -> Filling:
    """Fills the damaged place ``wound`` with blocks of any members that have them. Raises the error of the last member,
    or ``IntegrityFault``."""
    filling = Filling(wound, term_max=term_max)
    while not filling.whole:
        if filling.add_record():
            continue
        await _fill_next(member, filling, term_of(filling.next_vlsn) or filling.term)
    return filling


async def _fill_next(member: Member, filling: Filling, term: int) -> None:
    last: BaseException = NotFound("this group has no other member")
    for name in member.members.urls:
        if name == member.name:
            continue
        try:
            filling.add(await ask_block(member, name, term, filling.next_vlsn))
        except IntegrityFault:
            raise
        except (VlsnLogError, OSError, TimeoutError) as error:
            last = error
        else:
            return
    raise last


async def ask_block(member: Member, name: NodeName, term: int, first: Vlsn) -> bytes:
    """Fetches the block (``term``, ``first``) from the member ``name``. A term of 0 asks for the durable block that
    begins at ``first``. Raises ``NotFound``, ``Damaged``, ``Unreachable`` …"""
    return await get(member, name, "/v1/peer/block", term=term, first=first)
