"""The files of an open log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repl.read.segment_files import SegmentFiles

if TYPE_CHECKING:
    from repl.node.node import Node


class NodeFiles:
    """``repl.http.services.Files``."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def name(self) -> str:
        return self._node.config.name

    @property
    def group(self) -> str:
        return self._node.config.group

    def segments(self) -> list[dict[str, Any]]:
        return self._files().listing()

    def segment_end(self, number: int) -> int:
        return self._files().end(number)

    async def read_segment(self, number: int, start: int, end: int) -> bytes:
        return await self._files().read(number, start, end)

    def _files(self) -> SegmentFiles:
        self._node.opened()
        assert self._node.files is not None
        return self._node.files
