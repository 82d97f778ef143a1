"""Values that are numbers: each append's value has its number, and shows whether it is whole.

number 41  ─►  b"0000000000000029", its crc32 as 8 digits, and up to 1 KiB of text derived from the number
"""

from __future__ import annotations

from zlib import crc32

KEYS = 7
_DIGITS = 16
_EXTRA_MAX = 1024
_FILLER = b"".join(b"%x." % (each * each + 7) for each in range(600))
OWN = 0
"""One of the log's own entries: TERM, GROUP …"""
COMMIT = -2
"""The end of a transaction."""
DEAD = -3
"""A dead letter: a destination has given up one of its messages."""
DEAD_KEY = b"dead "
"""The prefix of the keys of dead letters; the destination's name follows."""
BROKEN = -1
"""A value that was never sent."""
NO_VALUES = frozenset((OWN, COMMIT, DEAD))


def value_of(number: int) -> bytes:
    """Returns the value of ``number``: most are short, some over a kilobyte."""
    mixed = number * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    size = (mixed >> 40) % _EXTRA_MAX if mixed & 7 == 0 else (mixed >> 40) % 100
    start = (mixed >> 20) % 512
    digits = b"%016x" % number
    return digits + b"%08x" % crc32(digits) + _FILLER[start : start + size]


def key_of(number: int) -> bytes:
    """Returns the key of that value in a transaction."""
    return b"key %d" % (number % KEYS)


def number_of(value: bytes, key: bytes = b"") -> int:
    """Returns the number in ``value``; ``BROKEN`` if it is not exactly that number's value, or has another key than its
    own."""
    try:
        number = int(value[:_DIGITS], 16)
    except ValueError:
        return BROKEN
    if key and key != key_of(number):
        return BROKEN
    return number if number > 0 and value == value_of(number) else BROKEN
