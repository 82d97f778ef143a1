"""Bytes that the disk does not give: a bad sector, below where the log was synced.

In an open log such a page is rot like any other: reads go around it, and ``ROT`` stands in its place.  So the checksum
of its frame is wrong, and it is found, named and mended as a flipped bit is.  Never zeros, which end a log.  An open
reads nothing this way: to it, unreadable bytes are unknown.  Every other ``OSError`` is no damage.
"""

from __future__ import annotations

import errno

from vlsn.seams import File

PAGE_BYTES = 4096
_ERRNOS = (errno.EIO, errno.EBADMSG, errno.EUCLEAN)
"""Errors of a bad sector, or of a file system that found one by its own checksums."""
ROT = b"unread!\n" * (PAGE_BYTES // 8)


def is_unread(error: OSError) -> bool:
    return error.errno in _ERRNOS


def read_pages(file: File, at: int, into: memoryview, unread: list[tuple[int, int]]) -> int:
    """Fills ``into`` from ``at`` on, page by page, and says how far. It adds to ``unread`` the places (start, end) that
    the disk does not give, which are zeros then; adjoining ones are one place."""
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
    """Reads as ``File.read``, with ``ROT`` where the disk gives nothing."""
    return read_given(file, at, size)[0]


def read_given(file: File, at: int, size: int) -> tuple[bytes, list[tuple[int, int]]]:
    """Reads as ``read_around``, and returns also the places (start, end) that the disk does not give."""
    data, unread = bytearray(size), list[tuple[int, int]]()
    with memoryview(data) as view:
        got = read_pages(file, at, view, unread)
    for start, end in unread:
        data[start - at : end - at] = (ROT * (1 + (end - start) // PAGE_BYTES))[: end - start]
    return bytes(data[:got]), unread
