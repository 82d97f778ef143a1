"""The history of a log: all that follows from its entries, such as terms, the group, and the producers. The history can
be computed as of any VLSN that is still needed.

The history is derived from visible blocks alone. Checkpoints store the history as the state record. A GROUP entry is in
force as soon as it is in the log, until it is rolled back. So the history keeps the durable GROUP entry, and also the
later GROUP entries, which may still be rolled back.

    term runs   [(1, 1, 40), (2, 41, 90)]      blocks 1–40 were sealed in term 1, 41–90 in term 2
    groups      [(2, GROUP at VLSN 2)]
    levels      [(77, 2)]                      the group's level since VLSN 77; until then it is 1
    settings    [(90, {producers: 9000})]      the other settings of the group since VLSN 90, all of them each time
    producers   the submissions of each producer in the log (``producers.py``)
    commits     the transactions in the log that have handles (``handles.py``)
    txn ends    [85]                           the last COMMIT of a transaction, and those that may be rolled back
    small       names with values that COMMIT entries set (``small_state.py``)
    founding    the log's name, from its first entry (``own_entries.py``)
    acks        the destinations' acknowledgements, from COMMIT entries (``acks.py``)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec.structs import replace

from vlsn.durability import SYNCED, GroupDurability, group_durability
from vlsn.format import block as block_format
from vlsn.format.block import EntryKind
from vlsn.format.block_run import BlockRun
from vlsn.format.feed_messages import TermRun
from vlsn.format.own_entries import OwnEntries, founding_of, own_entries
from vlsn.format.producer_columns import HANDLE_SEQUENCE, Produced
from vlsn.format.records import CommitEntry, GroupEntry, Settings
from vlsn.ids import NULL_TERM, NULL_VLSN, Term, Vlsn
from vlsn.levels import LEVEL_1
from vlsn.limits import PRODUCERS_AT_LEVEL_1, PRODUCERS_DEFAULT
from vlsn.seams import Buffer
from vlsn.state.acks import AckTable
from vlsn.state.handles import Handles
from vlsn.state.log_table import TableChanges
from vlsn.state.producers import Producers
from vlsn.state.small_state import SmallState
from vlsn.state.state_store import KEYED_FROM_LEVEL, PREFIXES, StateRecord

T = TypeVar("T")


class History:
    """The history of one log's visible blocks: its terms, GROUP entries, producers and other tables."""

    def __init__(self, record: StateRecord | None = None) -> None:
        self.term_runs: list[TermRun] = []
        self.groups: list[tuple[Vlsn, GroupEntry]] = []
        self.levels: list[tuple[Vlsn, int]] = []
        self.settings: list[tuple[Vlsn, Settings]] = []
        self.producers = producers_of(record) if record is not None else Producers()
        self.commits = Handles()
        """The transactions that have handles (numbers that identify commits)."""
        self.txn_ends: list[Vlsn] = []
        self.founding = record.founding if record is not None else ""
        self.small = SmallState(record.small if record is not None else None)
        self.acks = AckTable(record.acks, vlsn=record.vlsn) if record is not None else AckTable()
        if record is not None:
            self.commits = Handles(record.commits, lacks_to=record.producers.lacks_to)
            self.term_runs = [TermRun(*run) for run in record.term_runs]
            if record.group is not None:
                self.groups.append((Vlsn(record.group_vlsn), record.group))
            if record.level_vlsn:
                self.levels.append((record.level_vlsn, record.level))
            if record.settings_vlsn:
                self.settings.append((record.settings_vlsn, record.settings))
            if record.txn_end:
                self.txn_ends.append(record.txn_end)

    @property
    def _tables(self) -> tuple[Any, ...]:
        """All tables of the history. Each change of the log is applied to every table."""
        return self.producers, self.commits, self.small, self.acks

    @property
    def last_term(self) -> Term:
        return Term(self.term_runs[-1].term) if self.term_runs else NULL_TERM

    @property
    def group(self) -> GroupEntry | None:
        """The newest GROUP entry in the log, durable or not."""
        return self.groups[-1][1] if self.groups else None

    @property
    def group_vlsn(self) -> Vlsn:
        return self.groups[-1][0] if self.groups else NULL_VLSN

    @property
    def level(self) -> int:
        """The group's level (version of the formats) by the newest entry in the log, durable or not. A reader of this
        log must support that level."""
        return self.levels[-1][1] if self.levels else LEVEL_1.min

    @property
    def settled(self) -> Vlsn:
        """The VLSN from which on all tables can be computed exactly."""
        return Vlsn(max(table.settled for table in self._tables))

    @property
    def lacks_to(self) -> Vlsn:
        """The VLSN up to which some table misses entries that were cleaned away before they were noted. 0 if all tables
        are complete."""
        return Vlsn(max(table.lacks_to for table in self._tables))

    def level_at(self, durable: Vlsn) -> int:
        """Returns the group's level as of ``durable``. The log may be written in a level that is durable, since no
        rollback can undo the level."""
        return next((level for vlsn, level in reversed(self.levels) if vlsn <= durable), LEVEL_1.min)

    @property
    def set(self) -> Settings:
        """The group's settings, except the level, by the newest entry in the log, durable or not."""
        return self.settings[-1][1] if self.settings else Settings()

    @property
    def durability(self) -> GroupDurability:
        """The durability of appends that request no other, by the newest entry in the log."""
        return group_durability(self.set.durability or SYNCED)

    def term_of(self, vlsn: Vlsn) -> Term:
        """Returns the term in which ``vlsn`` was sealed, or 0 if ``vlsn`` is not in the log."""
        index = bisect_right(self.term_runs, int(vlsn), key=lambda run: run.first) - 1
        if index < 0 or vlsn > self.term_runs[index].last:
            return NULL_TERM
        return Term(self.term_runs[index].term)

    def note_term(self, term: int, first: int, last: int) -> None:
        """Notes that blocks with VLSNs ``first`` to ``last`` are of ``term``. The noted blocks must follow the known
        blocks."""
        runs = self.term_runs
        if runs and runs[-1].term == term:
            assert first == runs[-1].last + 1, (first, runs[-1])
            runs[-1] = TermRun(term, runs[-1].first, last)
        else:
            assert not runs or (term > runs[-1].term and first == runs[-1].last + 1), (term, first, runs[-1])
            runs.append(TermRun(term, first, last))

    def note_block(self, data: Buffer) -> None:
        """Reads a block that may hold GROUP or COMMIT entries, and applies these entries to the history."""
        self._note_own(own_entries(data, block_format.decode_header(data)))

    def _note_own(self, own: OwnEntries) -> None:
        self.founding = founding_of(own.entries) or self.founding
        for entry in own.entries:
            if entry.kind == EntryKind.GROUP:
                self.groups.append((entry.vlsn, GroupEntry.decode(entry.value)))
            elif entry.kind == EntryKind.COMMIT:
                commit = CommitEntry.decode(entry.value)
                if commit.put:
                    self.small.note(entry.vlsn, commit.puts)
                if commit.acks:
                    self.acks.note(entry.vlsn, commit.acks)
                self._note_settings(entry.vlsn, commit.set)
        if own.txn_end:
            self.txn_ends.append(own.txn_end)

    def _note_settings(self, vlsn: Vlsn, fresh: Settings) -> None:
        if fresh.level is not None:
            self.levels.append((vlsn, fresh.level))
        if fresh.producers is not None or fresh.durability is not None:
            held = self.set
            producers, durability = fresh.producers or held.producers, fresh.durability or held.durability
            self.settings.append((vlsn, Settings(producers=producers, durability=durability)))
        if fresh.level is not None or fresh.producers is not None:
            self.producers.limit_from(vlsn, _producers_max(self.level, self.set))

    def note_submissions(self, rows: list[Produced]) -> None:
        """Notes submissions of producers, and commits of transactions with handles. New rows must be after the
        submissions and commits noted before."""
        handles = [row for row in rows if row[1] == HANDLE_SEQUENCE]
        if handles:
            self.commits.note(handles)
            if len(handles) == len(rows):
                return
            rows = [row for row in rows if row[1] != HANDLE_SEQUENCE]
        self.producers.note(rows)

    def note_run(self, run: BlockRun, start: int, end: int) -> Vlsn:
        """Notes that blocks ``start`` to ``end`` (exclusive) of a replica's run were written to the log. Returns the
        VLSN of the last COMMIT of a transaction in these blocks, or 0 if there is none."""
        terms, txn_end = run.terms, NULL_VLSN
        if terms[start] == terms[end - 1]:
            self.note_term(terms[start], run.firsts[start], run.lasts[end - 1])
        else:
            for index in range(start, end):
                self.note_term(terms[index], run.firsts[index], run.lasts[index])
        for index, own in run.own.items():
            if start <= index < end:
                self._note_own(own)
                txn_end = own.txn_end or txn_end
        for index, rows in run.produced.items():
            if start <= index < end:
                self.note_submissions(rows)
        return txn_end

    def settle(self, dtvlsn: Vlsn) -> None:
        """Settles everything up to ``dtvlsn``, which no rollback can undo. GROUP entries before the newest durable one
        are forgotten, and so is everything that only VLSNs before ``dtvlsn`` need."""
        for table in self._tables:
            table.settle(dtvlsn)
        for settings in (self.groups, self.levels, self.settings):
            while len(settings) > 1 and settings[1][0] <= dtvlsn:
                del settings[0]
        while len(self.txn_ends) > 1 and self.txn_ends[1] <= dtvlsn:
            del self.txn_ends[0]

    def lacks_group(self, first: Vlsn, dtvlsn: Vlsn) -> bool:
        """Returns whether the newest GROUP entry that no rollback can undo is unknown. The entry is unknown if the log,
        which begins at ``first``, was cleaned past the entry and has lost the state record with it."""
        return first > 1 and (not self.groups or self.groups[0][0] > dtvlsn)

    def found_state(self, known: History, vlsn: Vlsn) -> None:
        """Adopts ``known``, the history of another copy of this log as of ``vlsn``, and keeps what was noted here after
        ``vlsn``. ``known`` must not be used afterwards. Raises ``ValueError``, before anything has changed, if
        ``known`` contradicts this log."""
        tables = list(zip(self._tables, known._tables, strict=True))
        for table, theirs in tables:
            table.check_fill(theirs, vlsn)
        self.groups = _found(self.groups, known.groups, vlsn)
        self.levels = _found(self.levels, known.levels, vlsn)
        settings, self.settings = _found(self.settings, known.settings, vlsn), []
        for at, told in settings:
            held = self.set  # an entry may have set one setting here while the other settings were unknown
            whole = Settings(producers=told.producers or held.producers, durability=told.durability or held.durability)
            self.settings.append((at, whole))
        self.producers.limits_behind(vlsn, self._limits_behind(vlsn))
        for table, theirs in tables:
            table.fill(theirs, vlsn)
        self.founding = self.founding or known.founding

    def _limits_behind(self, vlsn: Vlsn) -> list[tuple[int, int]]:
        """Returns the changes of the limit on producers after ``vlsn``: the VLSN of each change, and the new limit."""
        changes = sorted({at for at, _ in (*self.levels, *self.settings) if at > vlsn})
        sets = {
            at: next((told for since, told in reversed(self.settings) if since <= at), Settings()) for at in changes
        }
        return [(at, _producers_max(self.level_at(at), sets[at])) for at in changes]

    def begin_at_level(self, vlsn: Vlsn, level: int) -> None:
        """Notes that the log had ``level`` by ``vlsn``, the last VLSN that was cleaned away. The entry that set the
        level was cleaned away, too. No level may have been noted for this history before."""
        assert not self.levels
        if level > self.level:
            self.levels.append((vlsn, level))
            self.producers.limit_from(vlsn, _producers_max(level, self.set))

    def lose_before(self, vlsn: Vlsn) -> None:
        """Notes that entries before ``vlsn`` were never noted here, and are no longer in the log."""
        for table in self._tables:
            table.lose_before(vlsn)

    def give_up_lost(self) -> None:
        """Gives up the entries that ``lose_before`` has noted as lost, since no other copy has them."""
        for table in self._tables:
            table.give_up_lost()

    def truncate(self, last: Vlsn) -> None:
        """Forgets all entries after ``last``, which must not be below the settled VLSN."""
        assert last >= self.settled, (last, self.settled)
        for table in self._tables:
            table.truncate(last)
        while self.term_runs and self.term_runs[-1].first > last:
            self.term_runs.pop()
        if self.term_runs and self.term_runs[-1].last > last:
            run = self.term_runs[-1]
            self.term_runs[-1] = TermRun(run.term, run.first, last)
        for settings in (self.groups, self.levels, self.settings):
            while settings and settings[-1][0] > last:
                settings.pop()
        while self.txn_ends and self.txn_ends[-1] > last:
            self.txn_ends.pop()

    def truncate_head(self, first: Vlsn) -> None:
        """Makes the history begin at ``first``. The GROUP entry in force is kept, even if it is no longer in the
        log."""
        runs = [run for run in self.term_runs if run.last >= first]
        if runs and runs[0].first < first:
            runs[0] = TermRun(runs[0].term, first, runs[0].last)
        self.term_runs = runs
        while self.txn_ends and self.txn_ends[0] < first:
            del self.txn_ends[0]

    def snapshot(self, vlsn: Vlsn, *, trimmed_to: Vlsn, first_segment: int) -> Callable[[], StateRecord]:
        """Copies the whole history as of ``vlsn`` for a restore. ``trimmed_to`` is the last VLSN that was cleaned away.
        The returned function makes the ``StateRecord`` from the copy, on any thread (``Producers.snapshot``)."""
        record = self._sum(vlsn, trimmed_to, first_segment)
        tables = {field: getattr(self, field).snapshot(vlsn) for field in (*PREFIXES, "small")}
        return lambda: replace(record, **{field: table() for field, table in tables.items()})

    def keep_all(self) -> None:
        """Makes the next checkpoint write every table in full, since the store no longer has the rows of the last
        checkpoint."""
        for field in PREFIXES:
            getattr(self, field).keep_all()

    def checkpoint(
        self, vlsn: Vlsn, *, trimmed_to: Vlsn, first_segment: int
    ) -> Callable[[], tuple[StateRecord, dict[str, TableChanges] | None]]:
        """Copies the content of a checkpoint as of ``vlsn``. The caller must store the content. The returned
        function makes the record, and the rows that changed since the last checkpoint, on any thread. If the log's
        level is too low for tables with keys of their own, the function returns None for the rows, since the record
        holds all rows."""
        if self.level_at(vlsn) < KEYED_FROM_LEVEL:
            whole = self.snapshot(vlsn, trimmed_to=trimmed_to, first_segment=first_segment)
            self.keep_all()
            return lambda: (whole(), None)
        record, small = self._sum(vlsn, trimmed_to, first_segment), self.small.snapshot(vlsn)
        tables = {field: getattr(self, field).checkpoint(vlsn) for field in PREFIXES}

        def put_together() -> tuple[StateRecord, dict[str, TableChanges]]:
            parts = {field: table() for field, table in tables.items()}
            changes = {field: changes for field, (_, changes) in parts.items()}
            return replace(record, small=small(), **{field: kept for field, (kept, _) in parts.items()}), changes

        return put_together

    def _sum(self, vlsn: Vlsn, trimmed_to: Vlsn, first_segment: int) -> StateRecord:
        """Returns the record as of ``vlsn``, without the rows of its tables."""
        copy = History()
        copy.term_runs, copy.groups = list(self.term_runs), list(self.groups)
        copy.levels, copy.settings = list(self.levels), list(self.settings)
        copy.txn_ends, copy.founding = list(self.txn_ends), self.founding
        copy.truncate(vlsn)
        return StateRecord(
            vlsn=vlsn,
            group=copy.group,
            group_vlsn=copy.group_vlsn,
            level=copy.level,
            level_vlsn=copy.levels[-1][0] if copy.levels else NULL_VLSN,
            term_runs=[(run.term, run.first, run.last) for run in copy.term_runs],
            txn_end=copy.txn_ends[-1] if copy.txn_ends else NULL_VLSN,
            trimmed_to=trimmed_to,
            first_segment=first_segment,
            settings=copy.set,
            settings_vlsn=copy.settings[-1][0] if copy.settings else NULL_VLSN,
            founding=copy.founding,
        )


def _found(mine: list[tuple[Vlsn, T]], theirs: list[tuple[Vlsn, T]], vlsn: Vlsn) -> list[tuple[Vlsn, T]]:
    """Joins the items that another copy has as of ``vlsn`` with the items that were noted here after ``vlsn``."""
    before = theirs or [each for each in mine if each[0] <= vlsn]
    return before + [each for each in mine if each[0] > vlsn]


def producers_of(record: StateRecord) -> Producers:
    """Makes the table of producers from ``record``, with the limit that was set in the log by then."""
    producers = Producers(record.producers)
    if since := max(record.level_vlsn, record.settings_vlsn):
        producers.limit_from(since, _producers_max(record.level, record.settings))
    return producers


def _producers_max(level: int, settings: Settings) -> int:
    if settings.producers is not None:
        return settings.producers
    return PRODUCERS_DEFAULT if level > LEVEL_1.max else PRODUCERS_AT_LEVEL_1
