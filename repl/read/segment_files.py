"""Reads the files of a log for ``GET /v1/segments``, unchanged, up to the synced length. If the files cannot be read,
an error says why."""

from __future__ import annotations

from typing import Any

from repl.offload import Offload
from repl.read.scan_pace import ScanPace
from vlsn.errors import Damaged, NoRegularFile, NotFound, Trimmed
from vlsn.format.segment import segment_name
from vlsn.segments.bad_sectors import is_unread
from vlsn.write.local_log import LocalLog


class SegmentFiles:
    """The segment files of one log. ``offload`` runs the reads on another thread, and ``pace`` limits scans."""

    def __init__(self, log: LocalLog, offload: Offload, pace: ScanPace) -> None:
        self._log = log
        self._offload = offload
        self._pace = pace

    def listing(self) -> list[dict[str, Any]]:
        current = set(self._log.placement.active_files())
        return [
            {"number": number, "file": segment_name(number), "end": end, "sealed": number not in current}
            for number, end in self._log.view.segments().items()
            if end
        ]

    def end(self, number: int) -> int:
        """Returns the number of synced bytes in the segment ``number``. Raises ``NotFound``, or ``Trimmed`` if the
        segment was cleaned away."""
        end = self._log.view.synced_end(number)
        if not end:
            self._check(number)
            raise NotFound(f"there is no segment {number}")
        return end

    async def scan(self, number: int, start: int, end: int) -> bytes:
        """Reads as ``read`` does, once it is this scan's turn."""
        await self._pace.take(end - start)
        return await self.read(number, start, end)

    async def read(self, number: int, start: int, end: int) -> bytes:
        """Returns bytes ``start`` to ``end`` (exclusive). Raises ``Trimmed``, ``Damaged``."""
        log = self._log
        path = f"{log.directory}/{segment_name(number)}"

        def read() -> bytes:
            name = segment_name(number)
            try:
                file = log.seams.disk.open(path)
            except NoRegularFile as error:
                raise Damaged(str(error), file=name) from error
            try:
                return file.read(start, end - start)
            except OSError as error:
                if not is_unread(error):
                    raise
                raise Damaged(f"{name}: {error}", file=name, offset=start) from error
            finally:
                file.close()

        try:
            return await self._offload(read)
        except FileNotFoundError:
            self._check(number)
            raise

    def _check(self, number: int) -> None:
        if number < self._log.view.first_segment:
            first = self._log.view.range.first
            raise Trimmed(f"segment {number} was cleaned away; the log begins at VLSN {first}", first=first)
