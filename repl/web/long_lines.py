"""A long line of JSON, its long strings taken out of it and decoded a piece at a time.

    {"key":"k","value":"aaaaaa…"} ─► {"key":"k","value":"0000…0"}    decoded, and checked, as any line
                                     aaaaaa…                         decoded ``PIECE_BYTES`` at a time

A decoder goes through a line in one call. For 4 MiB of escapes that takes 20 ms, in which the event loop stands still.

1. A placeholder is longer than any string left in the line, so it cannot be mistaken for one.
2. A piece ends between two characters, and never between the two halves of a surrogate pair.
3. The text outside of strings must be short: it is decoded in one go.
"""

from __future__ import annotations

import re
from collections.abc import Generator

import msgspec

from repl.web.limits import PIECE_BYTES
from vlsn.errors import BadBody

SHORT_BYTES = 1024
"""Strings up to this stay in their line."""
LEFT_BYTES_MAX = PIECE_BYTES
"""Bytes of a line without its long strings."""
_STAND_IN = SHORT_BYTES + 4
"""Digits that stand in for a string; so many of them are base64, too."""
_PARTS_MAX = 64
"""Parts of a line between the ends of its strings; one that is right has 24 at most."""
_CHARACTERS = re.compile(
    rb'(?:[^"\\]+|\\(?:u[dD][89abAB][^"\\]{2}\\u[^"\\]{4}|u(?![dD][89abAB])[^"\\]{4}|[^u]))*', re.DOTALL
)
"""Whole characters of a string, as they are written. A half of a pair alone is none. Not possessive: that gives wrong
matches before Python 3.11.5."""
_WRITTEN_MAX = 12
"""Bytes that one character is written with, at most."""
_text = msgspec.json.Decoder(str)


class LongStrings:
    """The long strings of one line, in UTF-8, by their placeholders."""

    def __init__(self) -> None:
        self._found: list[bytes] = []

    def put(self, text: bytes) -> bytes:
        self._found.append(text)
        return b"%0*d" % (_STAND_IN, len(self._found) - 1)

    def of(self, text: str) -> bytes:
        """Returns the string that ``text`` stands in for, or ``text``."""
        return self._found[int(text)] if len(text) == _STAND_IN else text.encode()


def cut(line: bytes) -> Generator[int, None, tuple[bytes, LongStrings]]:
    """Returns the line with a placeholder for each long string, and these strings. Yields before each piece of work its
    bytes. Raises ``BadBody`` for a line that is no JSON, and for over ``LEFT_BYTES_MAX`` outside of strings."""
    strings, left, size, at = LongStrings(), [], 0, 0
    while at < len(line):
        begins = line.find(b'"', at) + 1 or len(line)
        ends = _end_of_short(line, begins)
        left.append(line[at : max(begins, ends)])
        if ends < 0:
            text, ends = yield from _decoded(line, begins)
            left += strings.put(text), b'"'
            ends += 1
        at = max(begins, ends)
        size += len(left[-1])
        if size > LEFT_BYTES_MAX or len(left) > _PARTS_MAX:
            raise BadBody(f"over {LEFT_BYTES_MAX} bytes of it are in no long string, or it has too many members")
    return b"".join(left), strings


def _end_of_short(line: bytes, begins: int) -> int:
    """Returns the end, past its quote, of a short string; -1 for a long one."""
    window = line[begins : begins + SHORT_BYTES + 1]
    found = _CHARACTERS.match(window)
    assert found is not None
    if window[found.end() : found.end() + 1] == b'"':
        return begins + found.end() + 1
    return -1 if len(window) > SHORT_BYTES else len(line)


def _decoded(line: bytes, begins: int) -> Generator[int, None, tuple[bytes, int]]:
    """Decodes the string that begins there; returns where its quote is, too."""
    pieces, at = [], begins
    while True:
        yield PIECE_BYTES
        ends = _cut_at(line, at)
        try:
            pieces.append(_text.decode(b'"%b"' % line[at:ends]).encode())
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadBody(f"a string at byte {at} of it: {error}") from None
        at = ends
        if line[at : at + 1] == b'"':
            yield PIECE_BYTES
            return b"".join(pieces), at


def _cut_at(line: bytes, at: int) -> int:
    """Returns where a piece of a string ends that begins at ``at``: at its quote, or between two characters."""
    window = line[at : at + PIECE_BYTES]
    found = _CHARACTERS.match(window)
    assert found is not None
    ends = at + found.end()
    quoted = line[ends : ends + 1] == b'"'
    if not quoted and (ends >= len(line) or found.end() < min(len(window), PIECE_BYTES - _WRITTEN_MAX)):
        raise BadBody(f"a string at byte {at} of it has no end, or half of a surrogate pair")
    for _ in range(3):
        if quoted or line[ends] & 0xC0 != 0x80:
            break
        ends -= 1  # it was in the middle of a character of UTF-8
    return ends
