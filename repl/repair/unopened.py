"""Handles a log that does not open because of damage. A log that does not open is mended with blocks of other members,
or restored from a member.

    mended    with copies of the lost blocks, if the remaining bytes, or the bytes around them, show the blocks' term
              and so their names; otherwise with blocks that peers call durable
    restored  once mending has failed ``MENDS_BEFORE_RESTORE`` times and every entry that this log can have
              acknowledged is durable at a peer, or older than the term of a durable end there; or if a person asks

Until then the node's state is DAMAGED. A DAMAGED node sends other members the readable parts of its log.
"""

from __future__ import annotations

import asyncio
from itertools import count

from repl.group.member import Member
from repl.offload import Offload
from repl.repair.mending import RETRY_S, fill, tell
from repl.repair.restoring import Restoration
from vlsn.errors import Damaged, VlsnLogError
from vlsn.format.segment import parse_segment_name
from vlsn.repair.mended_copy import mend
from vlsn.repair.mending import find_wound_of_closed
from vlsn.repair.restore import NULL_END, End
from vlsn.segments.directory import LOCK_NAME

MENDS_BEFORE_RESTORE = 3
"""The log is restored after this many failed tries to mend it, which are ``RETRY_S`` apart."""


class Unopened:
    """A node's log that does not open. The object is used from the log's last close until it opens again."""

    def __init__(self, member: Member, restoration: Restoration) -> None:
        self._member = member
        self._restoration = restoration
        self._said = ""
        self._last: tuple[int, int] | None = None

    async def run(self, error: Damaged) -> None:
        """Tries until the log is mended, or replaced by a member's log. After that the log can be opened again."""
        member, restoration = self._member, self._restoration
        member.set_state("DAMAGED", str(error))
        asked = asyncio.create_task(restoration.asked(), name="restore")
        durable: End = NULL_END
        try:
            for tries in count(1):
                if await self._try(error):
                    return
                if tries >= MENDS_BEFORE_RESTORE and (end := await restoration.lossless()) is not None:
                    durable = end
                    restoration.want(
                        f"damaged, and other members have all that can be durable, to VLSN {end.vlsn}: {error}"
                    )
                await asyncio.wait([asked], timeout=RETRY_S)
                if asked.done():
                    break
            why = asked.result()
        finally:
            asked.cancel()
        await restoration.run(why, durable=durable)

    async def _try(self, error: Damaged) -> bool:
        """Mends the damage that ``error`` describes. Returns whether opening the log may be tried again."""
        member, number = self._member, parse_segment_name(error.file)
        try:
            if number is None:
                return False
            return await self._mend(number)
        except (VlsnLogError, OSError, TimeoutError) as why:
            if self._said != str(why):
                self._said = str(why)
                member.event("damage.stays", file=error.file, offset=error.offset, why=str(why))
            return False

    async def _mend(self, number: int) -> bool:
        member = self._member
        disk, stores, directory = member.seams.disk, member.seams.stores, str(member.config.dir)
        on_keeper = Offload(member.workers["keeper"])
        wound, term = await on_keeper(lambda: find_wound_of_closed(disk, stores, directory, number))
        if wound is None or (wound.number, wound.start) == self._last:
            return False
        filling = await fill(member, wound, lambda _: 0, term_max=term)

        def put() -> list[str]:
            lock = disk.lock(f"{directory}/{LOCK_NAME}")
            try:
                return mend(disk, directory, [filling], free_bytes_min=member.config.free_bytes_min)
            finally:
                lock.release()

        (kept,) = await on_keeper(put)
        self._last = wound.number, wound.start
        tell(member, filling, kept)
        return True
