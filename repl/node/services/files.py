"""The files of an open log."""

from __future__ import annotations

from typing import Any

from repl.node.services.service import NodeService
from repl.read.segment_files import SegmentFiles


class NodeFiles(NodeService):
    """``repl.read.segments_http.Files``."""

    def segments(self) -> list[dict[str, Any]]:
        return self._files().listing()

    def segment_end(self, number: int) -> int:
        return self._files().end(number)

    async def read_segment(self, number: int, start: int, end: int) -> bytes:
        return await self._files().scan(number, start, end)

    def _files(self) -> SegmentFiles:
        return self._parts.opened().files
