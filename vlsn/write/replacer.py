"""The replacement of a segment whose write or sync failed: the segment's last frames are written to the next segment.

    write fails ─► begin ─► standby there? ─► writer: frames, header ─► index updated ─► on_replaced
                              └ no: go_on, once there is one

After a failed write, the contents of the 4 KiB page in which the write began are unknown. After a failed sync, the
contents of all pages that it should have synced are unknown. A failed write or sync is never tried again on the same
file. Instead, all frames from the first frame that reaches into the first such page on are written again elsewhere. The
payloads stay the same, and the frames get new headers:

    1  segments that never became part of the log (their header was not synced) are deleted, the directory synced
    2  the frames are written to the standby, from its first frame on; synced
    3  the standby's header page, ACTIVE, names the start of the first of these frames as the old file's end; synced
                                                                                             ◄ commit point

After a crash before step 3, the old file is unchanged, and the standby (the next segment) has an unsynced tail. After
step 3, the old file's frames past the named end are dead: each block is live in one file only. The unsynced frames were
not acknowledged yet, so the failure need not be reported to any client. Rolled back blocks are not written again
(``Frame.dropped``). Records of checkpoints that are synced already are not written again either, because a position
past a segment's end means the first frame of the next segment.

One replacement runs at a time. The log fails if another write fails meanwhile, if there is no room for another segment,
or if making a segment fails twice in a row. This module is used on the owner's thread, under the log's latch. Source:
HBase AbstractFSWAL (``syncFailed``, HBASE-25905, HBASE-22761).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from vlsn.errors import NoSpace
from vlsn.format.frame import FrameKind
from vlsn.format.records import RollbackEnd
from vlsn.format.segment import FIRST_FRAME, segment_name
from vlsn.ids import Lsn, Vlsn, lsn
from vlsn.seams import Buffer, Disk, Worker
from vlsn.segments.standby import Taken, active
from vlsn.segments.tail import Chunk, Frame, Group, Tail
from vlsn.state.options import LogStats
from vlsn.write.log_life import LogLife
from vlsn.write.log_view import LogView
from vlsn.write.placement import Placement

OnReplaced = Callable[[Group, float], None]
"""A function that is called with the group, and with the seconds that it took to write the group again."""


class Replacer:
    """Replaces the segments of one log whose writes have failed."""

    def __init__(self, view: LogView, placement: Placement, life: LogLife, *, writer: Worker, stats: LogStats) -> None:
        self._view = view
        self._placement = placement
        self._life = life
        self._writer = writer
        self._stats = stats
        self._broken: Broken | None = None
        self._on_replaced: OnReplaced = lambda _group, _seconds: None
        self._rewriting = False
        self._moved: dict[Lsn, Lsn] | None = None

    @property
    def active(self) -> bool:
        return self._broken is not None

    def begin(self, group: Group, error: BaseException, on_replaced: OnReplaced) -> None:
        """Begins to write ``group`` again, whose write or sync failed."""
        life = self._life
        if life.failure is not None:
            return
        if self._broken is not None or not isinstance(error, OSError):
            again = " again" if self._broken is not None else ""
            life.fail(f"a write or sync of the log failed{again}: {error}", error)
            return
        self._stats.write_errors += 1
        self._on_replaced = on_replaced
        self._placement.note_synced(group.chunks[: group.chunks_done])
        self._broken = abandon(group, self._placement.last_vlsn)
        self.go_on()

    def go_on(self) -> None:
        """Writes the frames of the failed group again, if there is a segment for them."""
        broken, placement, life = self._broken, self._placement, self._life
        if broken is None or self._rewriting or life.failure is not None:
            return
        try:
            if (refusal := placement.refusal) is not None:
                raise refusal
            if not placement.can_roll:
                return
            new = rewrite(broken, placement.take_standby())
        except NoSpace as error:
            life.fail(f"a write or sync of the log failed, and {error}", error)
            return
        placement.take(new.tail, "error")
        self._rewriting = True
        self._writer.submit(
            partial(new.write, self._view.disk, self._view.directory),
            partial(self._rewritten, broken, new, self._life.clock.monotonic_s()),
            partial(self.begin, broken.group, on_replaced=self._on_replaced),
        )

    def follow(self, *, on: bool) -> None:
        """Remembers where frames are moved to, for ``now_at``, while a rollback runs, because a rollback stores
        positions."""
        self._moved = {} if on else None

    def now_at(self, at: Lsn) -> Lsn:
        """Returns the present position of the frame whose position was ``at``."""
        return (self._moved or {}).get(at, at)

    def _rewritten(self, broken: Broken, new: Rewrite, began_s: float, _: None) -> None:
        self._wait_for_flush(broken, new, self._life.clock.monotonic_s() - began_s)

    def _wait_for_flush(self, broken: Broken, new: Rewrite, seconds: float) -> None:
        """Waits until the keeper's thread, which runs flushes of the index, has none under way. The index may change
        only while no flush is under way."""
        self._life.keep(lambda: None, lambda _: self._replaced(broken, new, seconds))

    def _replaced(self, broken: Broken, new: Rewrite, seconds: float) -> None:
        index, life = self._view.index, self._life
        with life.latch:
            if life.failure is not None:
                return  # a flush of the index that failed never finishes
            if index.levels.flushing:
                self._wait_for_flush(broken, new, seconds)
                return
            self._broken, self._rewriting = None, False
            self._placement.replaced(broken.group, broken.live, broken.prev_end, new.tail, new.deleted)
            new.relocate(broken.group)
            index.relocate(new.firsts, new.lasts, new.lsns)
            if self._moved is not None:
                self._moved = {old: new.moved.get(at, at) for old, at in self._moved.items()} | new.moved
            self._on_replaced(broken.group, seconds)


_CHECKPOINTS = (FrameKind.CHECKPOINT_START, FrameKind.CHECKPOINT_END)


@dataclass(slots=True)
class Broken:
    """A group whose write failed, and the frames to write again."""

    group: Group
    frames: list[tuple[int, Frame]]
    """The frames in log order, each with the number of its segment."""
    prev_number: int
    prev_end: int
    prev_last_vlsn: int
    live: Tail | None
    """The segment that was live before and now ends at ``prev_end``; None if the failed segment was not yet part of the
    log."""
    deleted: list[Tail] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(frame.bytes for _, frame in self.frames)


@dataclass(slots=True)
class Rewrite:
    """The frames of the failed group in their new segment. ``moved`` maps each old position to the new position."""

    tail: Tail
    chunk: Chunk
    header: bytes
    deleted: list[Tail]
    moved: dict[Lsn, Lsn] = field(default_factory=dict)
    firsts: list[int] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)
    lsns: list[int] = field(default_factory=list)

    def relocate(self, group: Group) -> None:
        """Sets the new positions of the frames in ``group``."""
        group.lsns = [self.moved.get(Lsn(at), Lsn(at)) for at in group.lsns]
        for record in group.records:
            record.lsn = self.moved.get(record.lsn, record.lsn)

    def write(self, disk: Disk, directory: str) -> None:
        """Writes the frames on the writer's thread, durable on return. Any ``OSError`` makes the log fail."""
        for tail in self.deleted:
            disk.remove(f"{directory}/{segment_name(tail.number)}")
        if self.deleted:
            disk.sync_directory(directory)
        chunk, file = self.chunk, self.tail.file
        if chunk.allocate:
            file.allocate(self.tail.size)
        buffers = chunk.joined()
        if buffers:
            file.write(FIRST_FRAME, buffers)
            file.sync()
        file.write(0, [self.header])
        file.sync()
        chunk.count_crc([self.header, *buffers])


def abandon(group: Group, last_vlsn: Vlsn) -> Broken:
    """Collects the frames to write again after ``group`` has failed. The group's chunks before the failed chunk are
    synced. ``last_vlsn`` is the last VLSN of the last block that was placed."""
    done = group.chunks_done
    failed, *later = group.chunks[done:]
    tail = failed.tail
    deleted = [chunk.tail for chunk in later]
    frames = [(tail.number, frame) for frame in tail.frames]
    frames += [(late.number, frame) for late in deleted for frame in late.frames]
    if not tail.synced:
        header = tail.header
        prev = (header.prev_number, header.prev_end, header.prev_last_vlsn)
        return Broken(group, _wanted(frames, tail), *prev, None, [tail, *deleted])
    end = frames[0][1].offset if frames else tail.synced
    firsts = [frame.first for _, frame in frames if frame.first]
    last = firsts[0] - 1 if firsts else last_vlsn
    return Broken(group, _wanted(frames, tail), tail.number, end, last, tail, deleted)


def _wanted(frames: list[tuple[int, Frame]], tail: Tail) -> list[tuple[int, Frame]]:
    return [
        (number, frame)
        for number, frame in frames
        if not frame.dropped and (frame.kind not in _CHECKPOINTS or number != tail.number or frame.end > tail.synced)
    ]


def rewrite(broken: Broken, taken: Taken) -> Rewrite:
    """Places the frames of ``broken`` in the standby (the next segment). Raises ``NoSpace`` if the frames do not
    fit."""
    if broken.bytes > taken.header.size - FIRST_FRAME:
        raise NoSpace(f"{broken.bytes} bytes to write again do not fit a segment of {taken.header.size}")
    header = active(
        taken.header,
        prev_number=broken.prev_number,
        prev_end=broken.prev_end,
        prev_last_vlsn=broken.prev_last_vlsn,
    )
    tail = Tail(header, taken.file)
    chunk = Chunk(tail, FIRST_FRAME, allocate=taken.allocate)
    new = Rewrite(tail, chunk, header.encode(), broken.deleted)
    for number, frame in broken.frames:
        old = lsn(number, frame.offset)
        at = chunk.place(frame.kind, _payload(frame, new.moved), frame.first, frame.last)
        new.moved[old] = at
        if frame.first:
            new.firsts.append(frame.first)
            new.lasts.append(frame.last)
            new.lsns.append(at)
            tail.first_vlsn = tail.first_vlsn or Vlsn(frame.first)
            tail.last_vlsn = Vlsn(frame.last)
            tail.entries += frame.last - frame.first + 1
    return new


def _payload(frame: Frame, moved: dict[Lsn, Lsn]) -> Buffer:
    """Returns the payload of ``frame``. The payload is unchanged, except that the end record of a rollback names the
    position of its start record, which may have moved."""
    if frame.kind is FrameKind.ROLLBACK_END:
        end = RollbackEnd.decode(bytes(frame.payload))
        return replace(end, start_lsn=moved.get(Lsn(end.start_lsn), end.start_lsn)).encode()
    return frame.payload
