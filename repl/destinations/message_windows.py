"""The windows of one destination: its messages are read a window at a time, and the last two windows are kept.

    VLSN in a kept window ─► that window
    in the log            ─► blocks of the log, looked at by column
    below the log         ─► pages; without pages the messages are lost

A destination that begins elsewhere gets new windows, so that no read from before the move is kept.
"""

from __future__ import annotations

from collections.abc import Callable

from repl.destinations.delivered import Source
from repl.destinations.limits import WINDOW_BYTES, WINDOWS_KEPT
from repl.destinations.message_batch import MessageColumns
from repl.destinations.window import Window
from vlsn.errors import Damaged, Trimmed
from vlsn.format.messages import MessageFilter
from vlsn.pages.source import PageSource

PAGED_MESSAGES = 10_000
"""Messages that are read from pages at once."""


class MessageWindows:
    """``wanted`` marks the messages of destination ``uuid``, which begins as VLSN ``since`` says. Each is called
    with a first and a last VLSN: ``lost`` where neither log nor pages have them, ``missing`` where the pages of this
    node will fetch them from another one."""

    def __init__(
        self,
        source: Source,
        pages: Callable[[], PageSource | None],
        wanted: MessageFilter,
        uuid: str,
        since: int,
        lost: Callable[[int, int], None],
        missing: Callable[[int, int], None],
    ) -> None:
        self._source = source
        self._pages = pages
        self._wanted = wanted
        self._uuid = uuid
        self._since = since
        self._lost = lost
        self._missing = missing
        self._kept: list[Window] = []
        """The window used last comes first: workers with keys and workers without may be far apart."""
        self._used = False

    async def at(self, vlsn: int) -> Window | None:
        """Returns a window with ``vlsn`` in it, None where it cannot be read now. Raises as ``read``."""
        window = next((each for each in self._kept if each.first <= vlsn < each.end), None)
        if window is None:
            window = await self.read(vlsn)
        if window is not None:
            self._kept = [window, *[each for each in self._kept if each is not window][: WINDOWS_KEPT - 1]]
        self._used = True
        return window if window is not None and vlsn < window.end else None

    def let_go(self) -> None:
        """Lets go of windows that have not been used since the last call."""
        if not self._used:
            self._kept = []
        self._used = False

    async def read(self, vlsn: int) -> Window | None:
        """Reads the messages from ``vlsn`` on; None where none can be read now. Raises ``Damaged``."""
        try:
            blocks = await self._source.blocks(vlsn, bytes_max=WINDOW_BYTES)
        except Trimmed as trimmed:
            return await self._read_pages(vlsn, int(trimmed.first))
        if blocks.data:
            return Window.of_blocks(blocks.data, self._wanted)
        if vlsn <= blocks.durable:
            raise Damaged(f"VLSN {vlsn} is durable, but cannot be read here", vlsn=vlsn)
        return None

    async def _read_pages(self, vlsn: int, log_first: int) -> Window | None:
        pages = self._pages()
        if pages is None:
            self._lost(vlsn, log_first - 1)
            return Window.of_messages(MessageColumns(), vlsn, log_first)
        run = await pages.messages(self._uuid, vlsn, since=self._since, limit=PAGED_MESSAGES, bytes_max=WINDOW_BYTES)
        if run.lacks is not None and not run.entries:
            self._missing(*run.lacks)
            return None
        entries = [entry for entry in run.entries if self._wanted.has(entry.key, entry.value)]
        return Window.of_messages(MessageColumns.of(entries), vlsn, max(int(run.next_vlsn), vlsn))
