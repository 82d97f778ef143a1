"""Decodes a long line of JSON: its long strings are cut out and decoded piece by piece.

    {"key":"k","value":"aaaaaa…"} ─► {"key":"k","value":"0000…0"}    decoded, and checked, as any line
                                     aaaaaa…                         decoded ``PIECE_BYTES`` at a time

A JSON decoder processes a line in one call. For 4 MiB of escapes this takes 20 ms, during which the event loop does
nothing else.

1. A placeholder is longer than any string that stays in the line, so no string can be mistaken for a placeholder.
2. A piece ends between two characters, and never between the two halves of a surrogate pair.
3. The text outside of strings must be short, because it is decoded in one call.
"""

from __future__ import annotations

import re
from collections.abc import Generator

import msgspec

from repl.web.limits import PIECE_BYTES
from vlsn.errors import BadBody

SHORT_BYTES = 1024
"""Strings of up to this many bytes stay in their line."""
LEFT_BYTES_MAX = PIECE_BYTES
"""The most bytes of a line without its long strings."""
_STAND_IN = SHORT_BYTES + 4
"""The digits of a placeholder. Their number makes the placeholder valid base64, too."""
_PARTS_MAX = 64
"""The most parts between the ends of a line's strings. A correct line has at most 24."""
_CHARACTERS = re.compile(
    rb'(?:[^"\\]+|\\(?:u[dD][89abAB][^"\\]{2}\\u[^"\\]{4}|u(?![dD][89abAB])[^"\\]{4}|[^u]))*', re.DOTALL
)
"""Matches whole characters of a string, as they are written. One half of a surrogate pair does not match. The pattern
is not possessive, because possessive patterns match wrongly before Python 3.11.5."""
_WRITTEN_MAX = 12
"""The most bytes with which one character is written."""
_text = msgspec.json.Decoder(str)


class LongStrings:
    """The long strings of one line, as UTF-8, by their placeholders."""

    def __init__(self) -> None:
        self._found: list[bytes] = []

    def put(self, text: bytes) -> bytes:
        self._found.append(text)
        return b"%0*d" % (_STAND_IN, len(self._found) - 1)

    def of(self, text: str) -> bytes:
        """Returns the string whose placeholder is ``text``, or ``text`` itself if it is no placeholder."""
        return self._found[int(text)] if len(text) == _STAND_IN else text.encode()


def cut(line: bytes) -> Generator[int, None, tuple[bytes, LongStrings]]:
    """Returns the line with a placeholder for each long string, and these strings. Yields the bytes of each piece of
    work before doing it. Raises ``BadBody`` for a line that is not JSON, or that has over ``LEFT_BYTES_MAX`` outside of
    its strings."""
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
    """Returns the end of a short string, after its quote, or -1 for a long string."""
    window = line[begins : begins + SHORT_BYTES + 1]
    found = _CHARACTERS.match(window)
    assert found is not None
    if window[found.end() : found.end() + 1] == b'"':
        return begins + found.end() + 1
    return -1 if len(window) > SHORT_BYTES else len(line)


def _decoded(line: bytes, begins: int) -> Generator[int, None, tuple[bytes, int]]:
    """Decodes the string that begins at ``begins``. Also returns the position of its closing quote."""
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
    """Returns where the piece of a string that begins at ``at`` ends: at the closing quote, or between two
    characters."""
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
        ends -= 1  # the cut was inside a character of UTF-8
    return ends
