"""A full scan, as tasks of Spark read it: ``python -m tests.bench.segment_reads URL URL …``, until it is ended.

Reads every segment of every node over HTTP, by the pieces and with the patience of the data source, again and again,
two segments at a time.  It prints the bytes of each piece, a line each, so that its parent can add them up.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Lock, local

from repl.audit.live import PIECE_BYTES, LiveSource
from repl.audit.plan import Part

READERS = 2
"""As many as Spark's ``local[2]`` has tasks at a time."""
_TELLS = Lock()


class _Kept(local):
    """A reader's piece of memory, used again for each that it reads."""

    def __init__(self) -> None:
        self.piece = bytearray(PIECE_BYTES)


_kept = _Kept()


def read(item: tuple[LiveSource, Part]) -> None:
    source, part = item
    for start in range(0, part.end, PIECE_BYTES):
        count = len(source.read(part, start, min(start + PIECE_BYTES, part.end), _kept.piece))
        with _TELLS:
            print(count, flush=True)


def main(urls: list[str]) -> None:
    sources = [LiveSource(url) for url in urls]
    items = [(source, part) for source in sources for part in source.survey(0).parts]
    by_turns = sorted(items, key=lambda item: item[1].number)  # each node's budget is its own
    print(0, flush=True)
    with ThreadPoolExecutor(READERS) as readers:
        while True:
            list(readers.map(read, by_turns))


if __name__ == "__main__":
    main(sys.argv[1:])
