"""Fetches messages that are missing from this node's pages from other members, and serves messages to other members.

    here      missing 41–9 000                    a page was damaged, the log was restored, the page table was lost
    a member  GET /v1/peer/messages?uuid=…&since=7&first=41&last=9000
              VLSN 5 201, and records of its messages from 41 to 5 200: from its pages, and from its log
    here      writes a page of its own; still missing 5 201–9 000, which it asks for next

A page is a file of messages whose part of the log was cleaned away. Messages with a durable acknowledgement, which no
rollback can undo, are not fetched. A member that is also missing some messages sends those before the gap, or refuses.
Any member can serve the VLSNs that its log or its pages have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from repl.destinations.page_reading import PageReading
from repl.destinations.pager import Pager
from repl.group.member import OpenMember
from repl.group.peers import get
from vlsn.errors import BadBody, Damaged, NotFound, Trimmed, VlsnLogError
from vlsn.format.vlsn_set import Span
from vlsn.ids import NodeName, Vlsn
from vlsn.limits import MIB
from vlsn.pages.page import HEADER_BYTES, PageHeader, walk
from vlsn.pages.paging_pass import Selector
from vlsn.pages.record import Record, messages_of, record_again, record_of, record_of_messages
from vlsn.pages.store import PagingStore
from vlsn.pages.subscription import Subscription

PERIOD_S = 1.0
TURN_S = 2.0
"""Seconds for which missing spans of one destination are fetched, before the next destination has its turn."""
RETRY_S = 5.0
"""Seconds until members that had none of the missing messages are asked again."""
GIVEN_BYTES = 8 * MIB
"""The approximate largest size of an answer in bytes. A single record may be larger."""
_NEXT_BYTES = 8


class Filling:
    """Fetches the spans of VLSNs that are missing from this node's pages. ``run`` never returns."""

    def __init__(self, opened: OpenMember, pager: Pager) -> None:
        self.filled = 0
        """The number of VLSNs that were missing and have been fetched since the log was opened."""
        self._member = opened.member
        self._pager = pager

    async def run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            failed = False
            for subscription in self._pager.subscriptions() or ():
                store = self._pager.manager.stores.get(subscription.uuid)
                if store is not None:
                    failed |= not await self._fill_some(store, subscription)
            if failed:
                await asyncio.sleep(RETRY_S)

    async def _fill_some(self, store: PagingStore, subscription: Subscription) -> bool:
        """Fetches missing spans of a destination for up to ``TURN_S``, because acknowledgements can split them into
        many. Returns as ``_fill``."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + TURN_S
        while store.missing and loop.time() < until_s:
            before = store.missing[0]
            if not await self._fill(store, subscription):
                return False
            if store.missing and store.missing[0] == before:
                break  # the destination was moved or dropped meanwhile
        return True

    async def _fill(self, store: PagingStore, subscription: Subscription) -> bool:
        """Asks the members for the first missing span. Returns False if no member has sent any part of the span."""
        first, last = store.missing[0]
        why = "this group has no other member"
        names = [name for name in self._member.members.listed if name != self._member.name]
        master = self._member.master_name()
        for name in sorted(names, key=lambda name: name != master):
            try:
                upto, records = await self._ask(NodeName(name), subscription, first, last)
                await self._put(store, subscription, (first, upto), records)
            except (VlsnLogError, OSError, TimeoutError) as error:
                why = f"{name}: {error}"
                continue
            self._pager.unfilled.pop(store.uuid, None)
            self._member.event(
                "pages.filled", destination=subscription.name, first=first, last=upto, **{"from": str(name)}
            )
            return True
        self._pager.unfilled[store.uuid] = why
        return False

    async def _ask(self, name: NodeName, subscription: Subscription, first: int, last: int) -> tuple[int, list[Record]]:
        uuid, since = subscription.uuid, subscription.since
        answer = await get(self._member, name, "/v1/peer/messages", uuid=uuid, since=since, first=first, last=last)
        return await self._pager.on_pages(lambda: read_given(answer, uuid, first, last))

    async def _put(self, store: PagingStore, subscription: Subscription, span: Span, records: list[Record]) -> None:
        pager = self._pager
        async with pager.alone:
            if pager.manager.stores.get(store.uuid) is not store or not store.missing or store.missing[0][0] != span[0]:
                return  # the span was acknowledged meanwhile, or the destination was dropped
            if store.row is None or store.row.since != subscription.since:
                return  # a destination that was moved meanwhile may want more messages of the span
            pages = await pager.put(store, subscription, records) if records else {}
            await pager.commit([store.filled(pages, [span], subscription.acknowledged)])
            self.filled += span[1] - span[0] + 1


def read_given(answer: bytes, uuid: str, first: int, last: int) -> tuple[int, list[Record]]:
    """Decodes a member's answer into the last VLSN that it covers, and its records. Raises ``BadBody``."""
    upto = int.from_bytes(answer[:_NEXT_BYTES], "little") - 1
    if not first <= upto <= last:
        raise BadBody(f"an answer up to VLSN {upto}, asked for {first} to {last}")
    page = answer[_NEXT_BYTES:]
    header = PageHeader.decode(page)
    if header.uuid != uuid:
        raise BadBody(f"messages of destination {header.uuid}, asked for {uuid}")
    records = []
    at = first
    for head in walk(page, header, len(page)):
        if not at <= head.covers_from <= head.covers_to <= upto:
            raise BadBody(f"a record of VLSNs {head.covers_from} to {head.covers_to}; {at} to {upto} are due")
        records.append(record_again(head, messages_of(page, head.offset, head)))
        at = head.covers_to + 1
    return upto, records


class Giving:
    """Serves messages of destinations to other members that are missing them."""

    def __init__(self, opened: OpenMember, pager: Pager, reading: PageReading) -> None:
        self._log = opened.log
        self._member = opened.member
        self._pager = pager
        self._reading = reading

    async def give(self, uuid: str, since: int, first: int, last: int) -> bytes:
        """Answers ``GET /v1/peer/messages``, up to the first message that this node cannot read now. Raises
        ``NotFound`` if this node does not have ``first`` either, and ``Damaged`` if it cannot read ``first`` now."""
        subscriptions = self._pager.subscriptions()
        subscription = next((each for each in subscriptions or () if each.uuid == uuid), None)
        if subscription is None:
            raise NotFound(f"destination {uuid[:32]} is not known here")
        if subscription.since != since:
            raise NotFound(f"destination {subscription.name} was set here by VLSN {subscription.since}, not {since}")
        at, size, records, unread = first, 0, list[Record](), ""

        def take(record: Record | None, upto: int) -> None:
            nonlocal at, size
            if record is not None:
                records.append(record)
                size += record.size
            at = upto + 1

        while at <= last and size < GIVEN_BYTES:
            log_first = self._log.view.range.first
            try:
                if at >= log_first:
                    upto = min(last, self._pager.durable())
                    if at > upto or not await self._from_log(subscription, at, upto, take):
                        break
                elif not await self._from_page(subscription, at, min(last, log_first - 1), take):
                    break
            except (OSError, Damaged, Trimmed) as error:
                unread = str(error)
                break
        if at == first and unread:
            raise Damaged(f"VLSN {first} of destination {subscription.name} cannot be read for now: {unread}")
        if at == first:
            raise NotFound(f"VLSN {first} is in neither log nor pages of destination {subscription.name} here")
        salt = self._member.seams.random.u32()
        return await self._pager.on_pages(lambda: _joined(uuid, at, records, salt))

    async def _from_log(
        self, subscription: Subscription, at: int, last: int, take: Callable[[Record | None, int], None]
    ) -> bool:
        log = self._log
        mapping = log.view.index.at_or_before(Vlsn(at))
        if mapping is None:
            return False
        reader = log.view.reader()

        def read() -> list[tuple[Record | None, int]]:
            try:
                run = reader.rows(at, start=mapping[1], upto_vlsn=log.view.range.last_sync)
            finally:
                reader.close()
            found: list[tuple[Record | None, int]] = []
            selector, low = Selector(subscription), at
            for rows in run.windows:
                upto = min(last, rows.first_vlsn + rows.rows - 1)
                if low > last:
                    break
                wanted = selector.wanted(rows, low, upto)
                record = record_of(rows, wanted, covers_from=low, covers_to=upto) if wanted is not None else None
                found.append((record, upto))
                low = upto + 1
            return found

        found = await self._pager.on_pages(read)
        for record, upto in found:
            take(record, upto)
        return bool(found)

    async def _from_page(
        self, subscription: Subscription, at: int, last: int, take: Callable[[Record | None, int], None]
    ) -> bool:
        store = self._pager.manager.stores.get(subscription.uuid)
        lacks = [span for span in store.missing if span[1] >= at] if store is not None else [(at, last)]
        if lacks and lacks[0][0] <= at:
            return False
        assert store is not None
        if store.row is None or store.row.since != subscription.since:
            return False  # after the destination was moved, its pages may not have all the messages that it wants now
        last = min(last, lacks[0][0] - 1) if lacks else last
        number = store.next_page(at)
        row = store.pages[number] if number is not None else None
        if row is None or row.first > last:
            take(None, min(last, store.paged_to))
            return store.paged_to >= at
        contents = await self._reading.contents_from(store, at)
        if contents is None:
            return False
        for piece in contents.pieces:
            low, high = piece.messages.vlsns.searchsorted((at, last + 1)).tolist()
            upto = min(last, piece.head.covers_to)
            if upto < at:
                continue
            record = None
            if low < high:
                record = record_of_messages(piece.messages, slice(low, high), covers_from=at, covers_to=upto)
            take(record, upto)
            at = upto + 1
        return True


def _joined(uuid: str, following: int, records: list[Record], salt: int) -> bytes:
    header = PageHeader(uuid, 0, salt)
    pieces = [following.to_bytes(_NEXT_BYTES, "little"), header.encode()]
    offset = HEADER_BYTES
    for record in records:
        pieces += map(bytes, record.placed(offset, salt))
        offset += record.size
    return b"".join(pieces)
