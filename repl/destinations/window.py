"""A window: the messages of one destination in a few consecutive blocks of the log, in columns.

    blocks    | 41 42 43 | 44 45 46 47 |        first 41, end 48
    messages     41    43   44       47         the columns: VLSN, time, where key and value are in the blocks' bytes

The log is searched by block, not by message. Answers are slices of the blocks' own bytes.

For each destination the last two windows stay in memory (``MessageWindows``). Other windows are read from the log,
or from pages (files of messages) if the log was cleaned. When a destination is moved, its windows are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from repl.destinations.delivered import Source
from repl.destinations.limits import WINDOW_BYTES, WINDOWS_KEPT
from repl.destinations.message_columns import MessageColumns
from vlsn.errors import Damaged, Trimmed
from vlsn.format.columns import KEYS
from vlsn.format.messages import MessageFilter
from vlsn.format.rows import I64, EntryRows
from vlsn.pages.record import gathered
from vlsn.pages.source import PageSource
from vlsn.seams import Buffer

Hashes: TypeAlias = npt.NDArray[np.uint64]
NO_KEY: Final = 0
"""The hash for a message without a key."""
_END_BYTES: Final = 32
"""A hash covers this many bytes at the beginning and at the end of a key. Keys with equal hashes only wait for one
another."""
_PRIMES: Final = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)


@dataclass(frozen=True, slots=True)
class Window:
    """The messages with VLSNs from ``first`` to ``end`` (exclusive). Other entries of that span belong to other
    destinations or to none."""

    first: int
    end: int
    vlsns: I64
    times: I64
    values: Buffer
    value_starts: I64
    value_ends: I64
    keys: Buffer
    key_starts: I64 | None
    """For each message, the offset of its key in the blocks' bytes. None if no message has a key."""
    key_ends: I64

    @classmethod
    def of_blocks(cls, blocks: Sequence[Buffer], wanted: MessageFilter) -> Window:
        """Makes the window of consecutive blocks, whose checksums are already checked."""
        rows = EntryRows.joined([*blocks])
        chosen = np.flatnonzero(wanted.mask(rows))
        starts, ends = rows.value_cuts()
        key_starts, key_ends = None, chosen
        if rows.has(KEYS).any():
            key_starts, key_ends = (cuts[chosen] for cuts in rows.key_cuts())
        first = rows.first_vlsn
        return cls(
            first,
            first + rows.rows,
            chosen + first,
            rows.column("clock_us")[chosen],
            rows.buf,
            starts[chosen],
            ends[chosen],
            rows.buf,
            key_starts,
            key_ends,
        )

    @classmethod
    def of_messages(cls, messages: MessageColumns, first: int, end: int) -> Window:
        """Makes the window of messages that were read from pages."""
        values, keys = np.cumsum(messages.value_lengths), np.cumsum(messages.key_column)
        return cls(
            first,
            end,
            messages.vlsns,
            messages.times,
            messages.values,
            values - messages.value_lengths,
            values,
            messages.keys,
            None if messages.key_lengths is None else keys - messages.key_lengths,
            keys,
        )

    @property
    def size(self) -> int:
        """The approximate bytes of memory that the window takes."""
        return len(self.values) + 40 * len(self.vlsns)

    def fitting(self, rows: slice | I64, bytes_max: int) -> int:
        """Returns how many of these rows, from the first on, fit into an answer of ``bytes_max`` bytes. At least one
        row fits if there is any."""
        sizes = self.value_ends[rows] - self.value_starts[rows]
        if self.key_starts is not None:
            sizes = sizes + self.key_ends[rows] - self.key_starts[rows]
        fits = int(np.searchsorted(np.cumsum(sizes), bytes_max, side="right"))
        return max(fits, min(1, len(sizes)))

    def columns(self, chosen: slice | I64) -> MessageColumns:
        """Copies the chosen messages out of the blocks."""
        vlsns = self.vlsns[chosen]
        if not len(vlsns):
            return MessageColumns()
        starts, ends = self.value_starts[chosen], self.value_ends[chosen]
        values, lengths = gathered(self.values, starts, ends), ends - starts
        if self.key_starts is None:
            return MessageColumns(vlsns, self.times[chosen], lengths, values)
        starts, ends = self.key_starts[chosen], self.key_ends[chosen]
        keys = gathered(self.keys, starts, ends)
        return MessageColumns(vlsns, self.times[chosen], lengths, values, ends - starts if keys else None, keys)

    def key_hashes(self, rows: slice) -> Hashes | None:
        """Returns the hash of each message's key, ``NO_KEY`` for a message without one. Returns None if no message
        has a key."""
        if self.key_starts is None:
            return None
        starts, ends = self.key_starts[rows], self.key_ends[rows]
        sizes = ends - starts
        if not sizes.any():
            return None
        width = min(int(sizes.max()) + 7 & ~7, _END_BYTES)
        hashes = _mixed(sizes.astype(np.uint64), _words(self.keys, starts, np.minimum(sizes, width), width))
        if (longer := sizes > width).any():
            tails = _words(self.keys, ends - width, np.full(len(sizes), width), width)
            hashes[longer] = _mixed(hashes, tails)[longer]
        hashes[hashes == NO_KEY] = 1
        hashes[sizes == 0] = NO_KEY
        return hashes


PAGED_MESSAGES: Final = 10_000
"""The most messages that are read from pages at once."""


class MessageWindows:
    """The windows of one destination. ``wanted`` marks the messages of destination ``uuid``. ``since`` is the VLSN
    of the entry that set where the destination begins. ``lost`` is called with the first and last VLSN of messages
    that neither the log nor pages have."""

    def __init__(
        self,
        source: Source,
        pages: Callable[[], PageSource | None],
        wanted: MessageFilter,
        uuid: str,
        since: int,
        lost: Callable[[int, int], None],
    ) -> None:
        self.missing: tuple[int, int] | None = None
        """The VLSNs that were missing in the last read of pages. This node will fetch the missing messages from another
        member."""
        self._source = source
        self._pages = pages
        self._wanted = wanted
        self._uuid = uuid
        self._since = since
        self._lost = lost
        self._kept: list[Window] = []
        """The windows in memory, the one used last first. There are several because workers with and without keys
        may be far apart in the log."""
        self._used = False

    async def at(self, vlsn: int) -> Window | None:
        """Returns a window that contains ``vlsn``, or None if ``vlsn`` cannot be read now. Raises as ``read``."""
        window = next((each for each in self._kept if each.first <= vlsn < each.end), None)
        if window is None:
            window = await self.read(vlsn)
        if window is not None:
            self._kept = [window, *[each for each in self._kept if each is not window][: WINDOWS_KEPT - 1]]
        self._used = True
        return window if window is not None and vlsn < window.end else None

    def let_go(self) -> None:
        """Drops the windows if none was used since the last call of this method."""
        if not self._used:
            self._kept = []
        self._used = False

    async def read(self, vlsn: int) -> Window | None:
        """Returns the messages from ``vlsn`` on, or None if no message can be read now. Raises ``Damaged``."""
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
        self.missing = run.lacks if not run.entries else None
        if self.missing is not None:
            return None
        entries = [entry for entry in run.entries if self._wanted.has(entry.key, entry.value)]
        return Window.of_messages(MessageColumns.of(entries), vlsn, max(int(run.next_vlsn), vlsn))


def _words(buf: Buffer, starts: I64, sizes: I64, width: int) -> npt.NDArray[np.uint64]:
    """Returns ``width`` bytes from each start on, as columns of u64. Bytes past ``sizes`` are 0."""
    steps = np.arange(width)
    data = np.frombuffer(buf, np.uint8)
    found = data[np.clip(starts[:, None] + steps, 0, len(data) - 1)]
    found[steps >= sizes[:, None]] = 0
    words: npt.NDArray[np.uint64] = found.view(np.uint64)
    return words


def _mixed(seed: Hashes, words: npt.NDArray[np.uint64]) -> Hashes:
    hashes: Hashes = seed * _PRIMES[0]
    for column in words.T:
        hashes = (hashes ^ column) * _PRIMES[1]
        hashes ^= hashes >> np.uint64(29)
        hashes *= _PRIMES[2]
        hashes ^= hashes >> np.uint64(32)
    return hashes
