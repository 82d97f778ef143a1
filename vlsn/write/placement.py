"""The position of the next frame in the segments. The *tail* is the segment that is written now. The *standby* is the
next segment, prepared before it is needed. A *roll* makes the standby the new tail.

    place(frame) ─► tail, while it fits          ─► chunk of the group ─► writer
                 └► standby, which becomes the new tail (a roll)

1. A frame is placed only where it certainly fits: in the tail, or in the standby together with the rest of its group.
   So one roll is always enough for a group, and one more segment is enough if the write fails.
2. Only ``written`` raises the end of a segment, after a sync. Only a replacement lowers the end of a segment, together
   with the header page that names the new end (``replacer``).
3. A standby that cannot be made is thrown away, and another one is made, first at once, then with pauses
   (``background``). From the second consecutive failure on, appends that need a new segment are refused (``refusal``),
   as they are on a full disk. Once a standby is made, appends are accepted again. While no standby can be made, only a
   failed write that needs a standby makes the log fail (``replacer``).

This module is used on the owner's thread only (``seams.Worker``), under the log's latch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from vlsn.errors import NoSegment, NoSpace
from vlsn.format.frame import FRAME_BYTES, FrameKind
from vlsn.format.segment import FIRST_FRAME, SegmentHeader, SegmentState, sidecar_name
from vlsn.format.submission import FRAME_OVERHEAD_BYTES
from vlsn.ids import Lsn, Vlsn
from vlsn.recover.recovery import Recovered
from vlsn.seams import Buffer, Seams
from vlsn.segments.holes import Holes
from vlsn.segments.sealing import Sealing
from vlsn.segments.standby import Standby, Taken, active
from vlsn.segments.tail import Chunk, Group, Tail
from vlsn.state.options import LogOptions, LogStats
from vlsn.write.log_life import LogLife
from vlsn.write.log_view import LogView

CHUNKS_MAX = 3
"""The most segments that one group may touch: the current segment, and two new ones (one requested, one for size)."""
_REFUSED_FROM = 2
"""From this number of consecutive failures to make a standby on, appends are refused."""


class Placement:
    """The segments of one open log, for its writer."""

    def __init__(
        self,
        recovered: Recovered,
        view: LogView,
        options: LogOptions,
        seams: Seams,
        life: LogLife,
        *,
        stats: LogStats,
        on_change: Callable[[], None],
    ) -> None:
        self.tail: Tail | None = recovered.tail
        self.taken_s = seams.clock.monotonic_s()
        """The time at which the current segment came into use."""
        self.last_vlsn: Vlsn = recovered.last_vlsn
        """The last VLSN of the last block that was placed."""
        self._view = view
        self._directory = view.directory
        self._options = options
        self._seams = seams
        self._keeper = life.keeper
        self._background = life.background
        self._stats = stats
        self._on_change = on_change
        self._owner = recovered.node_file.record
        self._prev_number = recovered.prev_number
        self._prev_end = recovered.prev_end
        self._next_number = recovered.next_number
        self._ends = view.ends
        self._capacity = options.segment_bytes - FIRST_FRAME
        self.payload_bytes_max = self._capacity - FRAME_OVERHEAD_BYTES
        """The most bytes of a submission (keys and values) that fit one segment."""
        self.frame_bytes_max = self._capacity - FRAME_BYTES - 7
        """The most bytes of a frame's payload that fit one segment."""
        self.block_bytes_max = self._capacity // 2
        """The most bytes of a merged block: half a segment."""
        self._standby = Standby(
            seams.disk,
            self._directory,
            life.keeper,
            life.latch,
            on_ready=self._standby_changed,
            on_failure=self._standby_failed,
            free_bytes_min=options.free_bytes_min,
        )
        self._sidecars: dict[str, tuple[int, Vlsn]] = {}
        """The sidecars (files of offsets) that are still to be written: the segment's number and last VLSN, by the
        sidecar's name."""
        self.holes = Holes(seams.disk, self._directory, life.background)

    def start(self) -> None:
        """Makes the first standby. The caller must be ready, because callbacks may come from now on."""
        self._prepare()
        last = max(self._ends, default=0)
        self.holes.give_back((number, end) for number, end in self._view.segments().items() if number < last)

    # The present segments.

    @property
    def no_space(self) -> bool:
        return self._standby.no_space

    @property
    def refusal(self) -> NoSpace | None:
        """The error for appends that need another segment; None while a standby exists or is being made."""
        if self.no_space:
            return NoSpace("the disk has no room for another segment")
        return NoSegment(self.unmade) if self.unmade else None

    @property
    def unmade(self) -> str:
        """The reason why the next segment could not be made repeatedly although the disk has room; otherwise empty."""
        fault = self._background.fault("standby")
        if fault is None or fault.failures < _REFUSED_FROM or self.no_space:
            return ""
        return f"the next segment could not be made {fault.failures} times: {fault.why}"

    @property
    def late_standbys(self) -> int:
        return self._standby.late

    @property
    def number(self) -> int:
        """The number of the segment for the next frame."""
        return self.tail.number if self.tail is not None else self._next_number

    @property
    def empty(self) -> bool:
        """True if the next frame will be the first frame of its segment."""
        return self.tail is None or self.tail.offset <= FIRST_FRAME

    @property
    def unsynced_bytes(self) -> int:
        """The bytes in the current segment that are written, or passed to the writer, but not synced."""
        return self.tail.unsynced if self.tail is not None else 0

    def active_files(self) -> list[int]:
        """Returns the numbers of the current segment (if there is one yet) and of the standby."""
        numbers = [self.tail.number] if self.tail is not None else []
        standby = self._standby.number
        return numbers + ([standby] if standby is not None else [])

    @property
    def disk_bytes(self) -> int:
        """The bytes of the disk that all segment files occupy. For a file that was not checked yet, its size is
        used."""
        taken, size = self.holes.taken, self._options.segment_bytes
        return sum(taken.get(number, size) for number in {*self._ends, *self.active_files()})

    def forget_sidecar(self, number: int) -> None:
        """Forgets the sidecar of segment ``number``. The segment is about to be rewritten, so the sidecar may no longer
        match."""
        self._forget_sidecars(lambda each, _: each == number)

    def give_back(self, number: int) -> None:
        """Frees the unused space of segment ``number``, which a rewrite has extended to its full size."""
        if number in self.holes.taken:
            self.holes.give_back([(number, self._ends[number])])

    def is_full_for(self, cost: int) -> bool:
        return self.tail is None or self.tail.offset + cost > self.tail.size

    # Placing frames.

    def group(self) -> Group:
        return Group([Chunk(self.tail, self.tail.offset)] if self.tail is not None else [])

    def fits(self, group: Group, size: int, *, several: bool = False) -> bool:
        """Returns whether frames of ``size`` bytes in all still fit (rule 1). The frames are one frame, or ``several``
        frames, some of which may be placed in the tail and some in the standby."""
        tail = self.tail
        in_tail = tail is not None and tail.offset + size <= tail.size
        if in_tail and len(group.chunks) == 1:
            return True
        if not in_tail and (not self.can_roll or len(group.chunks) >= CHUNKS_MAX):
            return False
        carried = sum([chunk.tail.carried for chunk in group.chunks if several or chunk.tail.unsynced])
        return carried + size <= self._capacity

    @property
    def can_roll(self) -> bool:
        """True while the standby may become the current segment. The first standby after an open must be filled with
        zeros completely, because it is needed at once. A later standby that is nearly filled may be used as it is."""
        standby = self._standby
        return standby.complete if self.tail is None else standby.usable

    def block(self, group: Group, data: Buffer, first: Vlsn, last: Vlsn, clock_us: int) -> None:
        at = self._place(group, FrameKind.BLOCK, data, first, last)
        group.firsts.append(first)
        group.lasts.append(last)
        group.lsns.append(at)
        group.clocks.append(clock_us)
        tail = group.chunks[-1].tail
        if not tail.first_vlsn:
            tail.first_vlsn = first
        tail.last_vlsn = self.last_vlsn = last
        tail.entries += last - first + 1
        self._stats.blocks += 1

    def record(self, group: Group, kind: FrameKind, payload: bytes) -> Lsn:
        return self._place(group, kind, payload, 0, 0)

    def roll(self, group: Group, reason: str | None) -> None:
        """Makes the standby the current segment. The segment's header page is written with its first frames."""
        old = self.tail
        taken = self.take_standby()
        header = active(
            taken.header,
            prev_number=old.number if old is not None else self._prev_number,
            prev_end=old.offset if old is not None else self._prev_end,
            prev_last_vlsn=self.last_vlsn,
        )
        tail = Tail(header, taken.file)
        group.chunks.append(Chunk(tail, 0, [header.encode()], taken.allocate))
        if old is not None:
            group.sealed_tails.append(old)
        self.take(tail, reason)

    def _place(self, group: Group, kind: FrameKind, payload: Buffer, first: int, last: int) -> Lsn:
        tail = self.tail
        # Offsets and sizes of segments are multiples of 8, so the padding after a payload always fits.
        if tail is None or tail.offset + FRAME_BYTES + len(payload) > tail.size:
            self.roll(group, "size" if tail is not None else None)
        chunk = group.chunks[-1]
        before = chunk.tail.offset
        at = chunk.place(kind, payload, first, last)
        group.bytes += chunk.tail.offset - before
        return at

    def take_standby(self) -> Taken:
        return self._standby.take()

    def take(self, tail: Tail, reason: str | None) -> None:
        """Makes ``tail``, which was the standby, the current segment."""
        self.tail = tail
        self.taken_s = self._seams.clock.monotonic_s()
        if reason is not None:
            self._stats.rolls[reason] += 1
        self._next_number = tail.number + 1
        self._background.works("standby")
        self._prepare()

    def forget_before(self, number: int) -> None:
        """Forgets segments before ``number``, which were cleaned away."""
        self.holes.forget_before(number)
        self._forget_sidecars(lambda each, _: each < number)

    def forget_after(self, vlsn: Vlsn) -> None:
        """Forgets blocks after ``vlsn``, which are being rolled back. A rollback changes flags of frames, and the
        running checksums of segments include these flags."""
        self._forget_sidecars(lambda _, last: last > vlsn)
        if self.tail is not None:
            self.tail.forget_after(vlsn)

    # After a write.

    def written(self, group: Group) -> None:
        """Notes that ``group`` is written, and also synced if the group asked for a sync."""
        if group.sync or len(group.chunks) > 1:
            self.note_synced(group.chunks)
        for tail in group.sealed_tails:
            self._close(tail)
        if self.tail is not None:
            filled = (self.tail.offset - FIRST_FRAME) / self._capacity
            if filled > self._standby.ahead_to:
                self._standby.pace(filled)

    def note_synced(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            self._synced(chunk.tail)

    def replaced(self, group: Group, live: Tail | None, end: int, new: Tail, deleted: Sequence[Tail]) -> None:
        """Uses the segment ``new``, which is synced with its header page, in place of the segment whose write
        failed. ``live`` is the old segment, which now ends at ``end``. The ``deleted`` segments never became part of
        the log."""
        if live is not None:
            live.offset, live.crc = end, None  # the checksum includes dead frames, so no sidecar is made
            self._ends[live.number] = live.offset
            self._close(live)
        for tail in deleted:
            assert tail.number not in self._ends, "the segment never became part of the log"
            self._keeper.submit(tail.file.close, lambda _: None, lambda _: None)
        self._synced(new)
        gone = {tail.number for tail in deleted} | ({live.number} if live is not None else set())
        group.sealed_tails = [tail for tail in group.sealed_tails if tail.number not in gone]
        group.sync = True
        group.chunks = [Chunk(new, new.offset)]

    def _synced(self, tail: Tail) -> None:
        """Notes that all of ``tail`` is synced. The sync of a segment's first frames includes its header page, which
        names the end of the segment before."""
        first = not tail.synced
        tail.set_synced(tail.offset)
        self._ends[tail.number] = tail.offset
        header = tail.header
        if first and header.prev_number in self._ends:
            self.holes.give_back([(header.prev_number, header.prev_end)])

    def _close(self, tail: Tail) -> None:
        name = sidecar_name(tail.number)
        self._sidecars[name] = (tail.number, tail.last_vlsn)
        sealing = Sealing(self._seams.disk, self._directory, tail)
        self._background.do("sidecar", name, sealing, lambda _: self._closed(name))

    def _closed(self, name: str) -> None:
        self._sidecars.pop(name, None)

    def _forget_sidecars(self, which: Callable[[int, Vlsn], bool]) -> None:
        names = [name for name, about in self._sidecars.items() if which(*about)]
        self._background.forget("sidecar", names)
        for name in names:
            del self._sidecars[name]

    # The standby.

    def retry(self) -> None:
        if self._standby.no_space:
            self._standby.retry()

    def close(self) -> None:
        """Closes the file of the current segment, and makes no more standbys."""
        self.holes.close()
        self._standby.close()
        if self.tail is not None:
            self.tail.file.close()

    def _prepare(self) -> None:
        self._standby.prepare(
            SegmentHeader(
                group=self._owner.group,
                node=self._owner.node,
                incarnation=self._owner.incarnation,
                number=self._next_number,
                salt=self._seams.random.u32(),
                state=SegmentState.PREPARED,
                size=self._options.segment_bytes,
                created_us=self._seams.clock.wall_us(),
                level=self._view.level,
            )
        )

    def _standby_failed(self, error: BaseException, name: str) -> None:
        if isinstance(error, IsADirectoryError | FileExistsError):
            self._next_number += 1  # the name is in use by another program's file
        self._background.fails("standby", error, self._prepare, path=name)
        self._on_change()

    def _standby_changed(self) -> None:
        standby = self._standby
        if standby.complete or (standby.ready and not standby.proving):
            self._background.works("standby")
        if self.tail is None or standby.proving:
            standby.pace(1.0)
        self._on_change()
