"""Divides the input of ``vlsnlog append`` into bodies (atomic appends). The input is lines of values, or the output of
``vlsnlog read --format json``.

A line ends only at ``\\n``. Nothing is trimmed, an empty line is an entry, and the last newline is optional. A JSON
line has a value and a key; its ``vlsn``, ``term`` and ``time`` belong to another log, and are ignored. The same input
is always divided into the same bodies, because a producer's submissions depend on that (``resume.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from vlsn.errors import BadBody, TooLarge
from vlsn.format.batch import ENTRY_OVERHEAD_BYTES
from vlsn.limits import ENTRY_BYTES_MAX, KEY_BYTES_MAX, KIB, MIB, SEGMENT_BYTES_MIN

READ_BYTES: Final = MIB
BODY_BYTES_MAX: Final = SEGMENT_BYTES_MIN // 4 * 3
"""The most bytes of a body, each line's overhead included. A body of this size fits any segment. A single line that is
larger is a body by itself."""
JSON_LINE_BYTES_MAX: Final = 6 * (ENTRY_BYTES_MAX + KEY_BYTES_MAX) + KIB
"""The most bytes of a JSON line. A byte of a value takes up to six bytes in a JSON string."""

Key = bytes | None
Decode = Callable[[bytes, int], tuple[bytes, Key]]
"""A function that decodes one line; the second argument is the number of the line, from 1 on."""


@dataclass(frozen=True, slots=True)
class Body:
    """The lines of one atomic append. ``keys`` is None if no line has a key."""

    values: list[bytes]
    keys: list[Key] | None

    def __len__(self) -> int:
        return len(self.values)


def bodies(source: BinaryIO, skip_lines: int = 0, *, key: Key = None, json: bool = False) -> Iterator[Body]:
    """Yields the lines of ``source`` after the first ``skip_lines``, in bodies. If the source is a slow pipe, its lines
    are sent without waiting for more. Raises ``TooLarge`` for a line that no entry can hold, and ``BadBody`` for a line
    that is not JSON, in both cases after all earlier lines."""
    if json:
        from repl.web.ndjson import decode_printed

        return _bodies(_lines(source, skip_lines, JSON_LINE_BYTES_MAX), decode_printed)
    return _bodies(_lines(source, skip_lines, ENTRY_BYTES_MAX), lambda line, _: (line, key))


def _bodies(lines: Iterable[tuple[int, list[bytes]]], decode: Decode) -> Iterator[Body]:
    for first, some in lines:
        values: list[bytes] = []
        keys: list[Key] = []
        size = 0
        fault: BadBody | None = None
        for number, line in enumerate(some, first):
            try:
                value, key = decode(line, number)
            except BadBody as error:  # the lines before the invalid line are sent first
                fault = error
                break
            if values and size + _cost(value, key) > BODY_BYTES_MAX:
                yield _body(values, keys)
                values, keys, size = [], [], 0
            values.append(value)
            keys.append(key)
            size += _cost(value, key)
        if values:
            yield _body(values, keys)
        if fault is not None:
            raise fault


def _cost(value: bytes, key: Key) -> int:
    return len(value) + len(key or b"") + ENTRY_OVERHEAD_BYTES


def _body(values: list[bytes], keys: list[Key]) -> Body:
    return Body(values, keys if any(keys) else None)


def _lines(source: BinaryIO, skip: int, line_bytes_max: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yields the complete lines of each chunk that was read, with the number of the first of these lines."""
    number, rest = 0, b""
    while chunk := source.read(READ_BYTES):
        *whole, rest = (rest + chunk).split(b"\n")
        kept = whole[max(0, skip - number) :]
        number += len(whole)
        first = number - len(kept) + 1
        fitting = next((at for at, line in enumerate(kept) if len(line) > line_bytes_max), len(kept))
        yield first, kept[:fitting]
        if fitting < len(kept):
            raise _too_long(first + fitting, line_bytes_max)
        if number < skip:
            rest = rest[:1]  # the contents of a skipped line are not needed, only whether there is one
        elif len(rest) > line_bytes_max:
            raise _too_long(number + 1, line_bytes_max)
    if rest and number >= skip:
        yield number + 1, [rest]


def _too_long(number: int, line_bytes_max: int) -> TooLarge:
    what = "the largest entry" if line_bytes_max == ENTRY_BYTES_MAX else "the longest line that is an entry"
    return TooLarge(f"line {number} is longer than {line_bytes_max} bytes, {what}")
