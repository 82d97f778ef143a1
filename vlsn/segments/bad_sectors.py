"""Bytes that the disk cannot read (a bad sector), in a part of the log that was synced.

In an open log, 4 KiB that cannot be read are treated like rotten bytes: a read continues after them, and returns
``ROT`` in their place. So the checksum of the frame there is wrong, and the damage is found, reported and mended like a
flipped bit. ``ROT`` is never zeros, since zeros end a log. The opening of a log does not replace unreadable bytes by
``ROT``, since their content is not known. No other ``OSError`` is treated as damage.
"""

from __future__ import annotations

import errno

from vlsn.seams import File

PAGE_BYTES = 4096
_ERRNOS = (errno.EIO, errno.EBADMSG, errno.EUCLEAN)
"""The errnos of a bad sector, or of a file system that found one by its own checksums."""
ROT = b"unread!\n" * (PAGE_BYTES // 8)


def is_unread(error: OSError) -> bool:
    return error.errno in _ERRNOS


def read_pages(file: File, at: int, into: memoryview, unread: list[tuple[int, int]]) -> int:
    """Reads from ``at`` on into ``into``, 4 KiB at a time, and returns the number of bytes read. The places (start,
    end) that the disk cannot read are added to ``unread``, and are zeros in ``into``. Adjoining places are merged."""
    begin, end = at, at + len(into)
    while at < end:
        stop = min(end, at - at % PAGE_BYTES + PAGE_BYTES)
        piece = into[at - begin : stop - begin]
        try:
            got = file.read_into(at, piece)
        except OSError as error:
            if not is_unread(error):
                raise
            piece[:] = bytes(len(piece))
            start = unread.pop()[0] if unread and unread[-1][1] == at else at
            unread.append((start, stop))
            got = len(piece)
        at += got
        if got < len(piece):
            break
    return at - begin


def read_around(file: File, at: int, size: int) -> bytes:
    """Reads like ``File.read``, but returns ``ROT`` in place of bytes that the disk cannot read."""
    return read_given(file, at, size)[0]


def read_given(file: File, at: int, size: int) -> tuple[bytes, list[tuple[int, int]]]:
    """Reads like ``read_around``. Also returns the places (start, end) that the disk cannot read."""
    data, unread = bytearray(size), list[tuple[int, int]]()
    with memoryview(data) as view:
        got = read_pages(file, at, view, unread)
    for start, end in unread:
        data[start - at : end - at] = (ROT * (1 + (end - start) // PAGE_BYTES))[: end - start]
    return bytes(data[:got]), unread
