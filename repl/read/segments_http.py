"""``GET /v1/segments`` and ``/v1/segments/{n}``: the log's files, unchanged, up to the synced length.

The audit and a restore read the log's files in this way. A request has one range of bytes (RFC 9110 §14):
``bytes=A-B``, ``bytes=A-``, ``bytes=-N``. The error is ``bad-argument`` for a range outside the file, for several
ranges, and for an invalid range.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from repl.group.member import Member
from repl.read.segment_files import SegmentFiles
from repl.web import query
from repl.web.calls import BYTES, FLAG, OCTETS, OPEN, TEXT, WHOLE, Call, header, in_path, ok, record
from repl.web.limits import SEGMENT_PIECE_BYTES, SEGMENT_STREAMS_MAX, Budget
from repl.web.types import Request, Response
from vlsn.errors import BadArgument, Damaged, NotFound, QueueFull, Trimmed

NUMBER_MAX = 0x7FFF_FFFF
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})\Z")
_NONE: frozenset[str] = frozenset()
CALLS = (
    Call(
        "read",
        "GET",
        "/v1/segments",
        "List the log's files",
        (),
        (
            ok(
                record(
                    {
                        "group": TEXT,
                        "node": TEXT,
                        "segments": {
                            "type": "array",
                            "items": record({"number": WHOLE, "file": TEXT, "end": WHOLE, "sealed": FLAG}),
                        },
                    }
                ),
                "The files; `end` is the number of synced bytes.",
            ),
        ),
        OPEN,
    ),
    Call(
        "read",
        "GET",
        "/v1/segments/{number}",
        "Read a file of the log",
        (
            in_path("number", "The segment.", {"type": "integer", "minimum": 1, "maximum": NUMBER_MAX}),
            header("Range", "One range, `bytes=A-B`, `bytes=A-` or `bytes=-N`."),
        ),
        (
            ok(BYTES, "The file up to its synced end.", kind=OCTETS, Accept_Ranges="`bytes`"),
            ok(BYTES, "The range.", status=206, kind=OCTETS, Content_Range="`bytes A-B/SIZE`"),
        ),
        OPEN | {NotFound, Trimmed, QueueFull},
        text=f"A node sends at most {SEGMENT_STREAMS_MAX} files at once.",
        example="-H 'Range: bytes=0-4095' $URL/v1/segments/1 -o segment",
    ),
)


class SegmentRoutes:
    def __init__(self, files: NodeFiles) -> None:
        self._files = files
        self._streams = Budget("segment streams", SEGMENT_STREAMS_MAX)

    async def listing(self, request: Request) -> Response:
        query.only(request.query, _NONE)
        segments = self._files.segments()
        body = msgspec.json.encode(
            {"group": self._files.member.config.group, "node": self._files.member.name, "segments": segments}
        )
        return Response(200, {"Content-Type": "application/json"}, body)

    async def segment(self, request: Request, item: str) -> Response:
        query.only(request.query, _NONE)
        if not item.isascii() or not item.isdigit() or int(item[:20]) > NUMBER_MAX:
            raise NotFound(f"there is no segment {item[:40]!r}")
        number = int(item)
        size = self._files.segment_end(number)
        start, end = byte_range(request.headers.get("Range", ""), size)
        headers = {
            "Content-Type": "application/octet-stream",
            "Accept-Ranges": "bytes",
            "Content-Length": str(end - start),
        }
        status = 200
        if "Range" in request.headers:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
            status = 206
        if request.method == "HEAD" or start == end:
            return Response(status, headers)
        self._streams.take(1)
        try:
            piece = await self._read(number, start, min(end, start + SEGMENT_PIECE_BYTES))
        except BaseException:
            self._streams.give(1)
            raise
        return Response(status, headers, stream=_File(self, number, start + len(piece), end, piece))

    async def _read(self, number: int, start: int, end: int) -> bytes:
        piece = await self._files.read_segment(number, start, end)
        if len(piece) != end - start:
            raise Damaged(f"segment {number} has fewer bytes than are synced", offset=start + len(piece))
        return piece

    async def piece(self, number: int, start: int, end: int) -> bytes:
        return await self._read(number, start, min(end, start + SEGMENT_PIECE_BYTES))

    def left(self) -> None:
        self._streams.give(1)


class _File:
    """The rest of a requested range, sent piece by piece."""

    def __init__(self, segments: SegmentRoutes, number: int, at: int, end: int, first: bytes) -> None:
        self._segments = segments
        self._number = number
        self._at = at
        self._end = end
        self._first = first
        self._closed = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        piece, self._first = self._first, b""
        if piece:
            return piece
        if self._at >= self._end:
            raise StopAsyncIteration
        piece = await self._segments.piece(self._number, self._at, self._end)
        self._at += len(piece)
        return piece

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._segments.left()


def byte_range(text: str, size: int) -> tuple[int, int]:
    """Parses the start and the end (exclusive) of a Range header for a file of ``size`` bytes. Without a header the
    range is the whole file.

    byte_range("bytes=0-99", 50) == (0, 50)      byte_range("bytes=-10", 50) == (40, 50)
    """
    if not text:
        return 0, size
    match = _RANGE.match(text.replace(" ", ""))
    if match is None or match.group(0) == "bytes=-":
        raise BadArgument(f"the range {text[:60]!r} is not one range of bytes")
    first, last = match.groups()
    if first:
        start, end = int(first), min(int(last) + 1, size) if last else size
        wrong_way = bool(last) and int(last) < start
    else:
        start, end, wrong_way = max(0, size - int(last)), size, False
    if wrong_way or start >= size or start >= end:
        raise BadArgument(f"the range {text[:60]!r} is not in the {size} bytes there are")
    return start, end


class NodeFiles:
    """The files of the node's log, unchanged."""

    def __init__(self, member: Member) -> None:
        self.member = member

    def segments(self) -> list[dict[str, Any]]:
        """Lists the segment files: ``number``, ``file``, ``end`` (the synced bytes), ``sealed``."""
        return self._files().listing()

    def segment_end(self, number: int) -> int:
        """Returns the synced bytes of a segment. Raises ``NotFound``, or ``Trimmed`` if the segment was cleaned
        away."""
        return self._files().end(number)

    async def read_segment(self, number: int, start: int, end: int) -> bytes:
        """Reads bytes ``start`` to ``end`` (exclusive, at most ``segment_end``) of a segment's file."""
        return await self._files().scan(number, start, end)

    def _files(self) -> SegmentFiles:
        return self.member.opened().part(SegmentFiles)
