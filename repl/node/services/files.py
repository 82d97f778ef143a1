"""The files of an open log."""

from __future__ import annotations

from typing import Any

from repl.node.parts import NodeParts
from repl.read.segment_files import SegmentFiles


class NodeFiles:
    """``repl.http.services.Files``."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts

    @property
    def name(self) -> str:
        return self._parts.member.config.name

    @property
    def group(self) -> str:
        return self._parts.member.config.group

    def segments(self) -> list[dict[str, Any]]:
        return self._files().listing()

    def segment_end(self, number: int) -> int:
        return self._files().end(number)

    async def read_segment(self, number: int, start: int, end: int) -> bytes:
        return await self._files().read(number, start, end)

    def _files(self) -> SegmentFiles:
        return self._parts.opened().files
