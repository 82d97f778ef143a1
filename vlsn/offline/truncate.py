"""Truncation by an operator: a stopped node's log is cut after a VLSN that a person names, even if later entries were
durable.

    0  the entries that would be lost are shown (``loss_of``, which only reads)
    1  the directory is opened as at any start; if the state record is of a later VLSN, the history is derived from the
       log instead
    2  the vote floor is set at the last block to remove: until its log is that long again, the node does not lead
    3  ``state`` is reduced to what will be left: DTVLSN, state record, the position from which the next open reads
    4  the log is rolled back to that VLSN (``rollback``); its ROLLBACK_START is the commit point; the next open would
       finish the rollback
    5  a clean stop

If the truncation is stopped before step 4, nothing is lost. The log still reaches its vote floor, and a DTVLSN that is
too low is raised again. The cut blocks are not erased, and a dump shows them. A truncation is refused inside a block,
if it would remove the GROUP entry that lists the members, or if the part of the log to be read is damaged. A truncation
of a cleaned log may also be refused because metadata has changed after the VLSN of the cut. A cleaned log no longer has
the earlier values of its metadata (``derived_history``).

``accept_floor`` is for a node whose vote floor no log can reach any more. ``accept_floor`` removes the vote floor, so
that the node can lead and vote again with its present log.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace

import msgspec

from vlsn.errors import BadArgument, Damaged, LogInUse, VlsnLogError
from vlsn.format.block import EntryKind
from vlsn.format.frame import FrameKind
from vlsn.ids import Lsn, Vlsn
from vlsn.limits import SEGMENT_BYTES, SEGMENT_BYTES_MIN
from vlsn.recover.derived_history import check_unchanged
from vlsn.recover.recovery import NODE_FILE_NAME, Recovered, recover
from vlsn.recover.vote_floor import with_floor
from vlsn.seams import Disk, Seams, Stores
from vlsn.segments.directory import LOCK_NAME, last_active, survey
from vlsn.state import node_file
from vlsn.state.node_file import NodeFile, NodeRecord
from vlsn.state.options import LogOptions
from vlsn.verify.dump import DumpFilter, DumpRow, dump_rows
from vlsn.verify.report import TermRun
from vlsn.verify.segment_chain import read_stated
from vlsn.write.local_log import LocalLog
from vlsn.write.rollback import find_abandoned
from vlsn.write.write_cycle import LogListener

_KINDS = frozenset(kind.name for kind in FrameKind if "ROLLBACK" not in kind.name) | {"UNREADABLE"}


@dataclass(slots=True)
class Loss:
    """The loss if a log is truncated after VLSN ``after``. ``last`` is the last visible VLSN before the truncation. The
    loss is ``entries`` entries in ``blocks`` blocks of ``bytes`` bytes, from VLSN ``first`` on (0: nothing is lost)."""

    after: int
    first: int = 0
    last: int = 0
    entries: int = 0
    blocks: int = 0
    bytes: int = 0
    dtvlsn: int = 0
    """The highest durable end that this copy of the log states. A majority has synced the lost entries up to
    ``dtvlsn``."""
    terms: list[TermRun] = field(default_factory=list)

    @property
    def durable(self) -> int:
        """The number of lost entries that are durable."""
        return max(0, min(self.last, self.dtvlsn) - self.first + 1) if self.first else 0


def loss_of(disk: Disk, stores: Stores, directory: str, after: int) -> Loss:
    """Computes the loss of a truncation. The computation only reads, from the segment that contains ``after`` on.
    Raises ``LogInUse`` or ``Damaged``. Raises ``BadArgument`` if ``after`` is not the last VLSN of a block in the log,
    or if the truncation would be refused because metadata has changed (``derived_history.check_unchanged``)."""
    check_stopped(disk, directory)
    first, last = span_of(disk, stores, directory)
    if not first <= after <= last or not last:
        holds = f"it holds VLSN {first} to {last}" if last else "it is empty"
        raise BadArgument(f"{directory} cannot be cut after VLSN {after}: {holds}")
    stated = read_stated(stores, directory)
    loss, record = Loss(after, dtvlsn=stated.dtvlsn), stated.record
    later: list[Lsn] = []
    for row in dump_rows(disk, stores, directory, DumpFilter(from_vlsn=after, kinds=_KINDS)):
        if row.damaged:
            raise Damaged(
                f"{row.file} is damaged at {row.offset} ({row.detail}); a damaged log is not cut",
                file=row.file,
                offset=row.offset,
                vlsn=row.first,
            )
        loss.dtvlsn = max(loss.dtvlsn, row.dtvlsn)
        if row.first > after:
            _add(loss, row)
            if record is not None and row.first <= record.vlsn:
                later.append(row.lsn)
        elif row.last > after:
            near = f"{row.first - 1} or {row.last}" if row.first > first else f"{row.last}"
            raise BadArgument(f"VLSN {after} is inside a block of VLSN {row.first} to {row.last}; cut after {near}")
    if record is not None and record.trimmed_to:
        check_unchanged(disk, directory, record, Vlsn(after), later)
    loss.last = last
    loss.dtvlsn = min(loss.dtvlsn, last)
    return loss


def span_of(disk: Disk, stores: Stores, directory: str) -> tuple[int, int]:
    """Returns the first and last visible VLSN, or 0 and 0 if no VLSN is visible."""
    blocks = DumpFilter(kinds=frozenset(("BLOCK",)))
    first = next(dump_rows(disk, stores, directory, blocks), None)
    last = next(dump_rows(disk, stores, directory, blocks, reverse=True), None)
    return (first.first, last.last) if first is not None and last is not None else (0, 0)


def check_stopped(disk: Disk, directory: str) -> None:
    if disk.is_locked(f"{directory}/{LOCK_NAME}"):
        raise LogInUse(f"{directory} belongs to a running node; stop it first")


def _add(loss: Loss, row: DumpRow) -> None:
    if EntryKind.GROUP.name in row.entries.split("+"):
        raise BadArgument(
            f"the block from VLSN {row.first} on lists the members of the group, which the node needs: "
            f"cut after {row.last} or later"
        )
    loss.first = loss.first or row.first
    loss.entries += row.count
    loss.blocks += 1
    loss.bytes += row.bytes
    begun = loss.terms.pop().first if loss.terms and loss.terms[-1].term == row.term else row.first
    loss.terms.append(TermRun(row.term, begun, row.last))


class Truncation:
    """One truncation. A truncation may be started on any thread, and runs on two threads of its own. Once the log ends
    at ``after`` and is closed, ``done`` gets the content of the node file, with the vote floor that was written. If the
    truncation fails, ``failed`` gets the error. ``done`` and ``failed`` are called on the owner's thread. After one of
    these calls, ``close`` must be called.

    Raises ``LogInUse``, ``Damaged`` or ``FileNotFoundError`` if there is no log to open.
    """

    def __init__(
        self,
        seams: Seams,
        directory: str,
        after: int,
        *,
        done: Callable[[NodeRecord], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        check_stopped(seams.disk, directory)
        record = node_file.read(seams.disk, f"{directory}/{NODE_FILE_NAME}")
        newest = last_active(survey(seams.disk, directory))
        size = newest.header.size if newest is not None and newest.header is not None else SEGMENT_BYTES
        self._options = LogOptions(segment_bytes=max(size, SEGMENT_BYTES_MIN))
        self._seams = seams
        self._after = Vlsn(after)
        self._done, self._failed = done, failed
        self._log: LocalLog | None = None
        self._told = False
        self._keeper = seams.threads.worker("vlsnlog-keeper")
        self._writer = seams.threads.worker("vlsnlog-writer")
        self._keeper.submit(
            lambda: recover(
                directory, seams, group=record.group, node=record.node, segment_bytes=size, exact_from=self._after
            ),
            self._opened,
            failed,
        )

    def close(self) -> None:
        """Ends the threads of the truncation. ``close`` must be called after ``done`` or ``failed`` has returned."""
        self._writer.close()
        self._keeper.close()

    def _opened(self, recovered: Recovered) -> None:
        writer, keeper = self._writer, self._keeper
        log = LocalLog(
            recovered,
            self._options,
            self._seams,
            writer=writer,
            keeper=keeper,
            listener=LogListener(),
            failed=self._give_up,  # if this is called during the opening of the log, the code below handles it
        )
        self._log = log
        if log.life.failure is not None:
            self._give_up(log.life.failure)
            return
        keeper.submit(lambda: self._promise(log), lambda _: self._cut(log), self._give_up)

    def _promise(self, log: LocalLog) -> None:
        """Does steps 2 and 3 of the truncation (vote floor, ``state``), on the keeper's thread. Everything that can be
        refused was refused before these steps."""
        abandoned = find_abandoned(log.view, self._after)
        if not abandoned.frames:
            return
        if log.view.history.group_vlsn > self._after:
            raise BadArgument(f"the GROUP entry at VLSN {log.view.history.group_vlsn} lists the members of the group")
        if log.view.history.levels and log.view.history.levels[-1][0] > self._after:
            raise BadArgument(f"the entry at VLSN {log.view.history.levels[-1][0]} sets the group's level")
        promised = with_floor(
            log.node_file.record, (log.view.history.last_term, log.view.range.last), last_visible=self._after
        )
        if promised != log.node_file.record:
            log.node_file.replace(promised)
        self._lower_state(log, abandoned.frames[0])

    def _lower_state(self, log: LocalLog, first_lost: Lsn) -> None:
        state, after = log.care.state, self._after
        checkpoint, idle, record = state.checkpoint(), state.idle_end(), state.record()
        if checkpoint is not None:
            lowered = min(checkpoint.dtvlsn, after), min(checkpoint.scan_lsn, first_lost)
            checkpoint = msgspec.structs.replace(checkpoint, dtvlsn=lowered[0], scan_lsn=lowered[1])
        if idle is not None:
            idle = msgspec.structs.replace(idle, dtvlsn=min(idle.dtvlsn, after))
        if record is not None and record.vlsn > after:
            record = log.view.snapshot(after)()
        state.save(checkpoint=checkpoint, idle_end=idle, record=record)

    def _cut(self, log: LocalLog) -> None:
        with log.latch:
            log.view.dtvlsn = Vlsn(min(log.view.dtvlsn, self._after))
            try:
                log.rollback(self._after, lambda: log.close(lambda: self._closed(log, None)), self._give_up)
            except VlsnLogError as error:
                self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        log = self._log
        if log is not None:
            log.close(lambda: self._closed(log, error))

    def _closed(self, log: LocalLog, error: BaseException | None) -> None:
        """Reports the end of the truncation, once. A failure during the clean stop is reported, too, although the log
        is already cut."""
        if self._told:
            return
        self._told = True
        record = log.node_file.record
        log.node_file.close()
        error = error or log.life.failure
        if error is not None:
            self._failed(error)
        else:
            self._done(record)


@dataclass(frozen=True, slots=True)
class Floor:
    """The vote floor of a node, and the end of its log."""

    term: int
    vlsn: int
    last_term: int
    last: int

    @property
    def holds(self) -> bool:
        """True while the log ends below the vote floor."""
        return (self.term, self.vlsn) > (self.last_term, self.last) and self.last < self.vlsn


def floor_of(disk: Disk, stores: Stores, directory: str) -> Floor:
    """Reads the vote floor and the end of the log. Nothing is changed. Raises ``LogInUse``, ``Damaged`` or
    ``FileNotFoundError``."""
    check_stopped(disk, directory)
    record = node_file.read(disk, f"{directory}/{NODE_FILE_NAME}")
    blocks = DumpFilter(kinds=frozenset(("BLOCK",)))
    last = next(dump_rows(disk, stores, directory, blocks, reverse=True), None)
    end = (last.term, last.last) if last is not None else (0, 0)
    return Floor(record.floor_term, record.floor_vlsn, *end)


def accept_floor(disk: Disk, directory: str) -> None:
    """Removes the vote floor, and begins a new term. The change is durable on return. Raises ``LogInUse``, ``Damaged``
    or ``LogFailed``."""
    lock = disk.lock(f"{directory}/{LOCK_NAME}")
    try:
        with closing(NodeFile.open(disk, f"{directory}/{NODE_FILE_NAME}")) as node_file:
            if node_file.record.floor_vlsn:
                record = node_file.record
                # The term must be new, since running members remember what was acknowledged in the old term
                # (``repl.group.old_images``).
                node_file.replace(replace(record, floor_term=0, floor_vlsn=0, term=record.term + 1))
    finally:
        lock.release()
