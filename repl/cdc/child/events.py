"""The events of BLOCKS messages, one after another, as a consumer takes them.

    message   |TERM 40|41 42 43|44–1500|        next = 42      events 42 43 44 … 1500

Entries are decoded from their blocks by column, ``AT_ONCE`` at a time. So even a message with many small entries
takes little memory. Entries other than DATA are skipped. A skipped entry counts as taken together with the event
before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from operator import length_hint
from typing import Final

import numpy as np

from vlsn.errors import BadBody
from vlsn.format.block import BLOCK_BYTES, Entry, EntryKind, decode_header
from vlsn.format.block_heads import BLOCK_DTYPE
from vlsn.format.feed_messages import BLOCKS_HEADER, split_blocks
from vlsn.format.rows import EntryRows
from vlsn.ids import NUMBER_MAX

AT_ONCE: Final = 1024
_DATA_ONLY = frozenset({int(EntryKind.DATA)})


class Events(Iterator[Entry]):
    """The events of one BLOCKS message from VLSN ``next_vlsn`` on."""

    def __init__(self, message: bytes, next_vlsn: int, last: int | None = None) -> None:
        """Checks the message. Entries after VLSN ``last`` yield no events. Raises ``BadBody``, also if the message
        does not contain VLSN ``next_vlsn``."""
        first = decode_header(message, BLOCKS_HEADER.size).first_vlsn if len(message) > BLOCKS_HEADER.size else 0
        run = split_blocks(message, expected_first=first, term_min=1, term_max=NUMBER_MAX)
        if not run.first_vlsn <= next_vlsn <= run.last_vlsn:
            raise BadBody(f"blocks {run.first_vlsn} to {run.last_vlsn} were sent where VLSN {next_vlsn} is next")
        sizes = np.array([len(block) for block in run.blocks], dtype=np.int64)
        ends = BLOCKS_HEADER.size + np.cumsum((sizes + 7) & ~7)
        places = ends - ((sizes + 7) & ~7)
        heads = np.frombuffer(message, np.uint8)[places[:, None] + np.arange(BLOCK_BYTES)].view(BLOCK_DTYPE).reshape(-1)
        self._rows = EntryRows(message, places, heads)
        chosen = self._rows.chosen(next_vlsn, min(run.last_vlsn, last or run.last_vlsn), _DATA_ONLY)
        if isinstance(chosen, slice):
            chosen = np.arange(*chosen.indices(self._rows.rows), dtype=np.int64)
        self._chosen = chosen
        self._first = run.first_vlsn
        self._last = run.last_vlsn
        self._begin = next_vlsn
        self._before: Entry | None = None
        """The last event of the batch that was decoded before ``_ready``."""
        self._cut = 0
        """The number of entries of ``_chosen`` that were decoded so far."""
        self._ready: list[Entry] = []
        self._left = iter(self._ready)
        """An iterator over the events of ``_ready`` that were not taken. The iterator's remaining length gives the
        position, so a loop over events runs no code of ours for each event."""
        self._flow: Iterator[Entry] = chain.from_iterable(self._parts())
        self.last_time = int(heads["clock_us"][-1])
        self.bytes = len(message)
        self._last_term = int(heads["term"][-1])

    def __iter__(self) -> Iterator[Entry]:
        return self._flow

    def __next__(self) -> Entry:
        return next(self._flow)

    def close(self) -> None:
        """Releases the memory of the blocks, even if the consumer has not read to the end of the iterator."""
        self._flow = chain(())

    @property
    def given(self) -> int:
        """The VLSN of the last event that the consumer has taken; 0 for none."""
        taken = self._taken()
        return taken.vlsn if taken is not None else 0

    @property
    def count(self) -> int:
        """The number of events taken so far."""
        return self._cut - length_hint(self._left)

    @property
    def next_vlsn(self) -> int:
        """The VLSN after the last event taken, and after the entries other than DATA that follow that event."""
        if self.over:
            return self._last + 1
        taken = self._taken()
        return taken.vlsn + 1 if taken is not None else self._begin

    @property
    def term(self) -> int:
        """The term of the entry before ``next_vlsn``; 0 before an event was taken."""
        if self.over:
            return self._last_term
        taken = self._taken()
        return taken.term if taken is not None else 0

    @property
    def over(self) -> bool:
        """True if every event has been taken."""
        return self._cut == len(self._chosen) and not length_hint(self._left)

    def _taken(self) -> Entry | None:
        """Returns the last event that was taken."""
        at = len(self._ready) - length_hint(self._left)
        return self._ready[at - 1] if at else self._before

    def _parts(self) -> Iterator[Iterator[Entry]]:
        """Decodes the events, ``AT_ONCE`` at a time. Each portion is decoded when all earlier events are taken."""
        while self._cut < len(self._chosen):
            rows = self._chosen[self._cut : self._cut + AT_ONCE]
            ready = self._rows.entries(rows)
            self._before = self._ready[-1] if self._ready else None
            self._ready, self._left, self._cut = ready, iter(ready), self._cut + len(rows)
            yield self._left
