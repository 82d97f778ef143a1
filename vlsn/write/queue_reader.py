"""The one reader of a log's queue: gives VLSNs, seals, and places, a group at a time.

What waits becomes a group as far as it surely fits (``Placement.fits``); nothing may fail between sealing and
the writer but the disk itself, for a sealed block is never unsealed.

Used at home only, under the log latch.
"""

from __future__ import annotations

from collections.abc import Callable

from vlsn.errors import NoSpace
from vlsn.format.block import FLAGS_AT, decode_header, producers
from vlsn.format.columns import PRODUCERS
from vlsn.format.frame import FRAME_BYTES
from vlsn.format.seal import Sealed, seal, seal_local
from vlsn.ids import NULL_TERM, Term, Vlsn, padded
from vlsn.limits import UNSYNCED_BYTES_MAX
from vlsn.seams import Clock
from vlsn.segments.tail import Group, Record
from vlsn.state.options import Durability, LogOptions
from vlsn.write.log_view import LogView
from vlsn.write.placement import Placement
from vlsn.write.queue import (
    ENTRY_OVERHEAD_BYTES,
    FRAME_OVERHEAD_BYTES,
    Barrier,
    LocalEntries,
    LocalRecord,
    Pending,
    Queue,
    ReplicaRun,
    Roll,
)


class QueueReader:
    """``term`` is the one that appends are sealed in, 0 while there are none."""

    def __init__(
        self,
        placement: Placement,
        view: LogView,
        options: LogOptions,
        clock: Clock,
        *,
        sealed: Callable[[list[Pending]], None],
    ) -> None:
        self.queue = Queue()
        self.term = NULL_TERM
        self.taken: list[Pending] = []
        """Appends that left the queue and are not sealed yet: should that fail, they are refused like those in it."""
        self._placement = placement
        self._view = view
        self._history = view.history
        self._ring = view.ring
        self._options = options
        self._clock = clock
        self._sealed = sealed

    def gather(self) -> Group | None:
        """Gathers the next group; None when there is nothing, or no room yet."""
        placement, items = self._placement, self.queue.items
        group = placement.group()
        while items and group.bytes < self._options.group_bytes_max:
            item = items[0]
            if isinstance(item, Pending):
                if not self._gather_appends(group):
                    break
            elif self._gather_other(group, item):
                items.popleft()
            else:
                break
        unsynced = placement.unsynced_bytes
        group.sync |= unsynced > UNSYNCED_BYTES_MAX
        if group.bytes or group.after:
            return group
        if items and unsynced:
            group.sync = True  # what is next does not fit beside what is not synced yet
            return group
        if items and (refusal := placement.refusal) is not None:
            self._refuse_for_space(group, refusal)
        return group if group.after else None

    def _gather_other(self, group: Group, item: LocalEntries | ReplicaRun | LocalRecord | Roll | Barrier) -> bool:
        """Puts ``item`` into the group, and says whether all of it is there."""
        placement = self._placement
        if isinstance(item, ReplicaRun):
            group.sync |= item.sync
            return self._gather_run(group, item)
        group.sync = True
        if isinstance(item, Roll):
            return self._gather_roll(group, item)
        if isinstance(item, Barrier):
            group.after.append(item.done)
        elif isinstance(item, LocalRecord):
            if not placement.fits(group, item.room):
                return False
            record = Record(placement.record(group, item.kind, item.payload()), item.done)
            group.records.append(record)
            group.after.append(record.tell)
        else:
            size = sum(map(len, item.values)) + len(item.values) * ENTRY_OVERHEAD_BYTES + FRAME_OVERHEAD_BYTES
            if not placement.fits(group, size):
                return False
            self._seal_entries(group, item)
        return True

    def _gather_appends(self, group: Group) -> bool:
        taken = self._take_appends(group, self._options.group_bytes_max - group.bytes)
        if taken:
            self._seal(group, taken)
            self.taken = []
        return bool(taken)

    def _take_appends(self, group: Group, limit: int) -> list[Pending]:
        """Takes the appends that come next, as far as they fit: one at least, whatever the ``limit``."""
        queue, placement = self.queue, self._placement
        if queue.only_appends and queue.bytes <= limit and placement.fits(group, queue.bytes, several=True):
            self.taken = queue.take_all()
            return self.taken
        taken: list[Pending] = []
        self.taken = taken
        total = 0
        while queue.items:
            item = queue.items[0]
            if not isinstance(item, Pending) or (taken and total + item.cost > limit):
                break
            if not placement.fits(group, total + item.cost, several=bool(taken)):
                break
            total += item.cost
            taken.append(item)
            queue.items.popleft()
            queue.taken(item)
        return taken

    def _seal(self, group: Group, pendings: list[Pending]) -> None:
        term = self.term
        assert term
        first, clock_us = self._view.next_vlsn, self._clock.wall_us()
        sealed = seal(
            [pending.submission for pending in pendings if pending.submission is not None],
            term=term,
            first_vlsn=first,
            dtvlsn=self._view.dtvlsn,
            clock_us=clock_us,
            block_bytes_max=min(self._options.block_bytes_max, self._placement.block_bytes_max),
        )
        self._place(group, term, sealed, clock_us)
        next_vlsn: int = first
        for pending in pendings:
            if pending.durability is Durability.SYNC:
                group.sync = True
            elif pending.durability is Durability.NO_SYNC:
                assert pending.first == next_vlsn, (pending.first, next_vlsn)
            pending.first = next_vlsn
            next_vlsn += pending.count
            pending.last = next_vlsn - 1
            pending.term = term
            pending.submission = None
        assert next_vlsn == self._view.next_vlsn
        group.submissions += len(pendings)
        group.entries += next_vlsn - first
        self._sealed(pendings)

    def _seal_entries(self, group: Group, item: LocalEntries) -> None:
        assert self.term
        clock_us = self._clock.wall_us()
        sealed = seal_local(
            item.kinds,
            item.values,
            term=self.term,
            first_vlsn=self._view.next_vlsn,
            dtvlsn=self._view.dtvlsn,
            clock_us=clock_us,
        )
        self._place(group, self.term, [sealed], clock_us)
        self._history.note_block(sealed.data)
        self.queue.vlsns -= len(item.values)
        group.after.append(lambda: item.done(sealed.last_vlsn))

    def _place(self, group: Group, term: Term, sealed: list[Sealed], clock_us: int) -> None:
        for each in sealed:
            self._placement.block(group, each.data, each.first_vlsn, each.last_vlsn, clock_us)
            if each.txn_end:
                if each.says:
                    self._history.note_block(each.data)
                else:
                    self._history.txn_ends.append(each.txn_end)
                group.txn_end = each.txn_end
            if each.data[FLAGS_AT] & PRODUCERS:  # after what the block may set for them
                self._history.note_submissions(producers(each.data, decode_header(each.data)))
        self._history.note_term(term, sealed[0].first_vlsn, sealed[-1].last_vlsn)
        self._ring.extend([each.data for each in sealed], [each.last_vlsn for each in sealed])
        self._view.next_vlsn = Vlsn(sealed[-1].last_vlsn + 1)

    def _gather_run(self, group: Group, item: ReplicaRun) -> bool:
        """Places blocks of a replica's run until one does not fit; True when all of it is placed."""
        run, placement = item.run, self._placement
        blocks = run.blocks
        assert run.firsts[item.at] == self._view.next_vlsn, (run.firsts[item.at], self._view.next_vlsn)
        start = item.at
        while item.at < len(blocks):
            block = blocks[item.at]
            if not placement.fits(group, FRAME_BYTES + padded(len(block))):
                break
            placement.block(group, block, Vlsn(run.firsts[item.at]), Vlsn(run.lasts[item.at]), run.clocks[item.at])
            item.at += 1
        end = item.at
        if end == start:
            return False
        if txn_end := self._history.note_run(run, start, end):
            group.txn_end = txn_end
        self._ring.extend(blocks[start:end], run.lasts[start:end])
        self._view.next_vlsn = Vlsn(run.lasts[end - 1] + 1)
        group.entries += run.lasts[end - 1] - run.firsts[start] + 1
        if end < len(blocks):
            return False
        group.after.append(lambda: item.done(None))
        return True

    def _gather_roll(self, group: Group, item: Roll) -> bool:
        placement = self._placement
        if not placement.empty and placement.refusal is None:  # nobody waits for a roll until there is room
            if not placement.can_roll:
                return False
            placement.roll(group, item.reason)
        number = placement.number
        group.after.append(lambda: item.done(number))
        return True

    def _refuse_for_space(self, group: Group, refusal: NoSpace) -> None:
        """Refuses the runs, checkpoints and appends that wait; appends whose VLSNs were told, and all before them,
        wait for space."""
        for run in self.queue.take_runs():
            run.done(refusal)  # now: nothing may come that follows on it
        refused = [*self.queue.take_refusable(), *[pending.refused for pending in self.queue.take_back()]]

        def tell() -> None:
            for each in refused:
                each(refusal)

        if refused:
            group.after.append(tell)
