"""Windows of messages: read once, kept while they are used, and lost where neither log nor pages have them."""

from __future__ import annotations

from repl.destinations.window import MessageWindows
from tests.fakes.loop import virtual
from tests.repl.destinations.test_delivery import UUID, Log, Pages
from tests.repl.destinations.test_window import ALL, FIRST
from vlsn.errors import Trimmed
from vlsn.ids import Vlsn
from vlsn.pages.source import PagedRun


class Read:
    """Windows of a log with two blocks of two messages, and the VLSNs that each read of it began at."""

    def __init__(self, pages: Pages | None = None) -> None:
        self.log = Log([b"a", b"b"], [b"c", b"d"])
        self.log.before = self.begin
        self.begun: list[int] = []
        self.first = 0
        self.said: list[tuple[str, int, int]] = []
        self.windows = MessageWindows(
            self.log,
            lambda: pages,
            ALL,
            UUID,
            5,
            lambda first, last: self.said.append(("lost", first, last)),
        )

    async def begin(self, vlsn: int) -> None:
        self.begun.append(vlsn)
        if vlsn < self.first:
            raise Trimmed("cleaned", first=Vlsn(self.first))

    async def vlsns(self, at: int) -> list[int] | None:
        window = await self.windows.at(at)
        return None if window is None else [int(vlsn) for vlsn in window.vlsns]


@virtual
async def test_two_windows_are_kept_while_they_are_used() -> None:
    read = Read()
    for at in (FIRST, FIRST + 1, FIRST + 2, FIRST):
        assert await read.vlsns(at) == [at - (at - FIRST) % 2, at - (at - FIRST) % 2 + 1]
    assert read.begun == [FIRST, FIRST + 2]
    read.windows.let_go()
    await read.vlsns(FIRST)
    assert len(read.begun) == 2, "they were used since the last call"
    read.windows.let_go()
    read.windows.let_go()
    await read.vlsns(FIRST)
    assert len(read.begun) == 3


@virtual
async def test_below_the_log_messages_are_in_pages_or_missing_or_lost() -> None:
    read = Read()
    read.first = FIRST + 2
    assert await read.vlsns(FIRST) == []
    assert read.said == [("lost", FIRST, FIRST + 1)]
    pages = Pages(FIRST + 2)
    read = Read(pages)
    read.first, pages.entries = FIRST + 2, read.log.entries[1:2]
    assert await read.vlsns(FIRST) == [FIRST + 1] and not read.said
    pages.run = PagedRun([], Vlsn(FIRST), (FIRST, FIRST + 1))
    read.windows.let_go()
    read.windows.let_go()
    assert await read.vlsns(FIRST) is None
    assert read.windows.missing == (FIRST, FIRST + 1) and not read.said
