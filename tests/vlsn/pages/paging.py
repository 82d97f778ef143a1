"""A pager driven step by step, on a log in memory, and what it must hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.vlsn.logs import Machine, Opened
from vlsn.format.block import Entry
from vlsn.format.submission import Values
from vlsn.format.vlsn_set import VlsnSet
from vlsn.ids import Vlsn
from vlsn.pages.manager import PagingManager
from vlsn.pages.opening import open_pages
from vlsn.pages.page import read_page
from vlsn.pages.paging_pass import PagingPass
from vlsn.pages.store import Change, PagingStore
from vlsn.pages.subscription import Subscription

PAGE_BYTES = 8 << 10


@dataclass
class Destination:
    """One destination as a plain model: which VLSNs are its messages, and which are acknowledged."""

    uuid: str
    prefix: bytes = b""
    letters: bytes = b""
    since: int = 1
    acked: set[int] = field(default_factory=set)

    def subscription(self) -> Subscription:
        done = VlsnSet.of(sorted(self.acked))
        return Subscription(self.uuid, self.uuid[:4], self.prefix, done, Vlsn(self.since), self.letters)

    def has(self, entry: Entry) -> bool:
        key = entry.key or b""
        own = bool(self.letters) and key == self.letters and entry.value.startswith(self.letter_head)
        return key.startswith(self.prefix) and not own

    @property
    def letter_head(self) -> bytes:
        """Returns the beginning of its dead letters."""
        return b'{"destination":"%s",' % self.uuid[:4].encode()


class Pager:
    """The pages of one open log; each call is done on return."""

    def __init__(self, opened: Opened, *, page_bytes: int = PAGE_BYTES, stride_bytes: int = 20 << 10) -> None:
        self.opened, self.log = opened, opened.log
        self._stride_bytes = stride_bytes
        seams = opened.machine.seams()
        self.table = self.log.care.state.pages()
        salts = seams.random.u32
        directory = opened.machine.directory
        first = max(1, self.log.view.range.first)
        found = open_pages(
            seams.disk, seams.threads.latch, salts, directory, self.table, first=first, page_bytes=page_bytes
        )
        self.table.write(found.changes)
        self.notes, self.aside = found.notes, found.aside
        self.manager = PagingManager(seams.disk, seams.threads.latch, salts, directory, page_bytes=page_bytes)
        self.manager.adopt(found)

    def commit(self, changes: Iterable[Change]) -> None:
        changes = list(changes)
        self.table.write(changes)
        for store, numbers in self.manager.committed(changes):
            store.remove(numbers)

    def page(self, destinations: Iterable[Destination], upto: int) -> None:
        subscriptions = [each.subscription() for each in destinations]
        self.commit(self.manager.reconciled(subscriptions, self.log.view.range.first))
        wants = self.manager.wants(subscriptions, Vlsn(upto))
        run = PagingPass(
            wants, self.log.view.reader(), self.log.view.index, Vlsn(upto), first=self.log.view.range.first,
            stride_bytes=self._stride_bytes, window_bytes=4 << 10,
        )  # fmt: skip
        try:
            while not run.over:
                run.step()
                for writer in run.full_pages():
                    writer.sync()
                if run.due:
                    changes = run.sync()
                    self.table.write(changes)
                    run.committed(changes)
        except Exception:
            run.discard()
            raise
        finally:
            run.close()

    def done(self, destinations: Iterable[Destination]) -> None:
        self.commit(self.manager.done([each.subscription() for each in destinations], {}))

    def held(self, uuid: str) -> dict[int, Entry]:
        """Reads all messages in the pages of one destination; none is there twice."""
        store = self.manager.stores.get(uuid)
        return held_in(self.opened.machine, store) if store is not None else {}


def held_in(machine: Machine, store: PagingStore) -> dict[int, Entry]:
    found: dict[int, Entry] = {}
    last = 0
    for number, row in sorted(store.pages.items(), key=lambda item: item[1].first):
        contents = read_page(machine.disk, store.path(number), store.uuid, number, row.end)
        assert not contents.fault, contents.fault
        entries = [entry for piece in contents.pieces for entry in piece.messages.entries(slice(None))]
        assert [entry.vlsn for entry in entries] == contents.vlsns.tolist()
        assert (row.first, row.last, row.count) == (entries[0].vlsn, entries[-1].vlsn, len(entries))
        assert row.first > last
        assert row.covers_from <= row.first <= row.last <= row.covers_to
        last = row.last
        for entry in entries:
            assert entry.vlsn not in found
            found[entry.vlsn] = entry
    return found


def keyed(*pairs: tuple[bytes, bytes]) -> Values:
    return Values([value for _, value in pairs], [key for key, _ in pairs])
