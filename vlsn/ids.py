"""Identifiers of the log.

A VLSN is the number of an entry: 1, 2, 3 … with no gap, the same on every node. An LSN is the position of a frame on
one node: ``file number << 32 | offset``. LSNs differ from node to node.

    lsn(7, 4096) == 0x0000_0007_0000_1000        lsn_file(…) == 7        lsn_offset(…) == 4096

``NULL_VLSN`` (0) means *before the first VLSN*. There is no other null value. Ranges are inclusive. An exclusive bound
is called ``end``.
"""

from __future__ import annotations

import re
from typing import NewType

Vlsn = NewType("Vlsn", int)
Lsn = NewType("Lsn", int)
Term = NewType("Term", int)
NodeName = NewType("NodeName", str)
Incarnation = NewType("Incarnation", int)
"""The identity of a node's store: a random u64 that a new, empty store draws. An incarnation is shown as 16 hex
digits."""

DATA, COMMIT = 0, 3
"""The kinds of entries in a transaction, with the same numbers as in ``block.EntryKind``."""
NULL_VLSN = Vlsn(0)
NULL_LSN = Lsn(0)
NULL_TERM = Term(0)
U32_MAX = 0xFFFF_FFFF
U64_MAX = 0xFFFF_FFFF_FFFF_FFFF
NUMBER_MAX = (1 << 63) - 1
"""The highest term, VLSN or time. Terms, VLSNs and times fit a signed 64-bit integer, since some readers have no other
type."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,32}\Z")
_PART = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,64}\Z")


def lsn(file: int, offset: int) -> Lsn:
    """Returns the LSN of the frame at ``offset`` (bytes) of segment ``file`` (from 1)."""
    return Lsn(file << 32 | offset)


def lsn_file(at: Lsn) -> int:
    return at >> 32


def lsn_offset(at: Lsn) -> int:
    return at & U32_MAX


def is_name(text: str) -> bool:
    """Returns whether ``text`` may name a group or a node: 1–32 of ``[A-Za-z0-9._-]``."""
    return _NAME.match(text) is not None


def is_part(text: str) -> bool:
    """Returns whether ``text`` may name a consumer, a destination or a sink. The name of a consumer, destination or
    sink is a part of a URL's path. Allowed are 1–64 of ``[A-Za-z0-9._-]``. ``.`` and ``..`` are not allowed, since a
    client resolves them before a node gets the URL."""
    return _PART.match(text) is not None
