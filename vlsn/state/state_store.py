"""The ``state`` store: the log's small metadata beside its segments.

    checkpoint   where the next open starts to read                     one transaction with ``record``
    record       what entries add up to, as of a VLSN that can no longer change
    idle_end     the synced end of a log that has gone quiet; counts like a checkpoint for what is synced

    p ‖ u64      one producer's life (``producer_lives``), the producer big-endian, as of the record's VLSN
    t ‖ u64      the same of one transaction's handle
    a ‖ u64      the acknowledgements of one destination, JSON, its uuid big-endian
    g ‖ …        the page table of destinations (``pages/table``)

Values are JSON with the store's checksum, except lives. Fields that a later version adds are ignored. From level 2 on,
lives have keys of their own, so that a checkpoint writes only the lives that changed. Below level 2 the record contains
the lives. Unlike the index, the ``state`` store cannot always be rebuilt. A store is set aside if it cannot be read, or
if it ends before the VLSN that precedes the log's first VLSN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from vlsn import levels
from vlsn.errors import Damaged
from vlsn.format.frame import FRAME_BYTES
from vlsn.format.records import JSON_FAULTS, CheckpointEnd, GroupEntry, Settings
from vlsn.ids import NULL_VLSN, Lsn, Term, Vlsn
from vlsn.levels import Levels, unread
from vlsn.pages.table import PageTable
from vlsn.seams import KeyValue
from vlsn.state.acks import AcksRecord
from vlsn.state.log_table import TableChanges
from vlsn.state.producers import ProducersRecord
from vlsn.state.small_state import SmallStateRecord

T = TypeVar("T")

CHECKPOINT_KEY = b"checkpoint"
RECORD_KEY = b"record"
IDLE_END_KEY = b"idle_end"
PREFIXES = {"producers": b"p", "commits": b"t", "acks": b"a"}
"""Tables with keys of their own, by field of the state record: the first byte of the keys. No other key begins with
that byte."""
KEYED_FROM_LEVEL = 2
"""The level from which on lives have keys of their own. A binary of an earlier level would take such a record for
empty."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The place where recovery starts to read: ``scan_lsn``, at or before ``start_lsn``. Everything before ``end_lsn``
    was synced."""

    id: int
    start_lsn: Lsn
    end_lsn: Lsn
    scan_lsn: Lsn
    first_vlsn: Vlsn
    last_vlsn: Vlsn
    dtvlsn: Vlsn
    clean: bool
    time_us: int


class StateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The state derived from the entries up to ``vlsn``, which is at or below DTVLSN and last_sync.

    All fields except ``OWN_FIELDS`` follow from the entries, and are the same in every copy of the log."""

    vlsn: Vlsn
    group: GroupEntry | None = None
    group_vlsn: Vlsn = NULL_VLSN
    term_runs: list[tuple[int, int, int]] = []
    """The runs (term, first, last) of visible blocks, ascending. The record of an embedded log has only the newest
    run."""
    trimmed_to: Vlsn = NULL_VLSN
    """The last VLSN that was cleaned away in this copy."""
    producers: ProducersRecord = msgspec.field(default_factory=ProducersRecord)
    commits: ProducersRecord = msgspec.field(default_factory=ProducersRecord)
    """The transactions that have handles; absent in records of level 1."""
    txn_end: Vlsn = NULL_VLSN
    """The VLSN of the last COMMIT of a transaction up to ``vlsn``; absent in records of level 1."""
    small: SmallStateRecord = msgspec.field(default_factory=SmallStateRecord)
    acks: AcksRecord = msgspec.field(default_factory=AcksRecord)
    """The acknowledgements of destinations; absent in records of levels 1 and 2."""
    level: int = 1
    """The group's level at ``vlsn``; absent in records that are older than levels."""
    level_vlsn: Vlsn = NULL_VLSN
    """The VLSN of the entry that set the level, 0 for none."""
    first_segment: int = 0
    """The segment in which the log begins after it was cleaned. Earlier segments no longer belong to the log. 0: the
    log was never cleaned."""
    settings: Settings = Settings()
    """The group's settings at ``vlsn``, except the level."""
    settings_vlsn: Vlsn = NULL_VLSN
    """The VLSN of the entry that set the newest of the settings, 0 for none."""
    founding: str = ""
    """The log's name (``own_entries.founding_of``). Empty if an earlier version has cleaned away the first entry, which
    contains it."""

    def check(self) -> None:
        """Raises ``ValueError`` for a record that no log can produce."""
        for table in (self.producers, self.commits, self.acks, self.small):
            table.check(self.vlsn)


OWN_FIELDS: Final = ("term_runs", "txn_end", "trimmed_to", "first_segment")
"""The fields of a state record that belong to one copy of the log, since they depend on where this copy begins. Code
that makes, stores, sends, fetches or restores a record carries all other fields with it
(``tests/seam/test_carried.py``)."""


class IdleEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The synced end of the writer: every byte before ``lsn`` is synced, and the last block ends at ``vlsn`` in
    ``term``."""

    lsn: Lsn
    term: Term
    vlsn: Vlsn
    dtvlsn: Vlsn = NULL_VLSN
    """The VLSN known to be durable, which the last blocks' own headers cannot state."""


@dataclass(slots=True)
class StoredEnds:
    """The checkpoint and the idle end of a ``state`` store."""

    checkpoint: Checkpoint | None
    idle: IdleEnd | None

    @property
    def ends(self) -> list[Lsn]:
        """The exclusive LSNs up to which the log had been synced."""
        ends = [self.idle.lsn] if self.idle is not None else []
        if self.checkpoint is not None:
            ends.append(Lsn(self.checkpoint.end_lsn + FRAME_BYTES + CheckpointEnd.LAYOUT.size))
        return ends

    @property
    def dtvlsn(self) -> int:
        return max(each.dtvlsn if each is not None else 0 for each in (self.checkpoint, self.idle))


class StateStore:
    """The ``state`` store of one log. Any thread may read, and the store's thread calls ``save``."""

    def __init__(self, store: KeyValue) -> None:
        self._store = store

    def checkpoint(self) -> Checkpoint | None:
        """Reads the checkpoint. Raises ``Damaged``, like the other reads."""
        return self._read(CHECKPOINT_KEY, Checkpoint)

    def record(self) -> StateRecord | None:
        """Returns the record, including the lives of its tables, wherever the store keeps them. Also raises
        ``WrongVersion`` for a level that this binary cannot read."""
        record = self._read(RECORD_KEY, StateRecord)
        if record is None:
            return None
        check_level(record.level)
        try:
            for field, prefix in PREFIXES.items():
                table: ProducersRecord | AcksRecord = getattr(record, field)
                if table.keyed:
                    rows = self._rows(field, prefix, table.count)
                    record = msgspec.structs.replace(record, **{field: table.together(rows, prefix)})
            record.check()
        except ValueError as fault:
            raise Damaged(f"state: {RECORD_KEY.decode()} is not one: {fault}") from fault
        return record

    def idle_end(self) -> IdleEnd | None:
        return self._read(IDLE_END_KEY, IdleEnd)

    def check(self) -> None:
        """Reads all saved values except pages, to check their checksums. Raises ``Damaged`` if a checksum does not
        match."""
        for key in (CHECKPOINT_KEY, RECORD_KEY, IDLE_END_KEY):
            self._store.get(key)
        for prefix in PREFIXES.values():
            self._store.items(*_range(prefix))

    def save(
        self,
        *,
        checkpoint: Checkpoint | None = None,
        record: StateRecord | None = None,
        idle_end: IdleEnd | None = None,
        changes: Mapping[str, TableChanges] | None = None,
    ) -> None:
        """Saves the arguments that are not None, in one transaction. Other values are unchanged. With ``changes``, by
        field, the rows of ``record`` are those of the last save with these changes applied. The call blocks, and the
        values are durable on return. Raises ``LogFailed`` if the store cannot be written."""
        given = (CHECKPOINT_KEY, checkpoint), (IDLE_END_KEY, idle_end)
        puts = [(key, msgspec.json.encode(value)) for key, value in given if value is not None]
        if record is None:
            self._store.write(puts)
            return
        if changes is None:
            record, changes = _apart(record)
        tables = [(PREFIXES[field], change) for field, change in changes.items()]
        puts.append((RECORD_KEY, msgspec.json.encode(record)))
        self._store.write(
            _Puts(puts, tables),
            deletes=[_key(prefix, producer) for prefix, change in tables for producer in change.deletes],
            delete_ranges=[_range(prefix) for prefix, change in tables if change.whole],
        )

    def begin_at(self, first: Vlsn, first_segment: int) -> None:
        """Saves in the present record where the log begins after it was cleaned. Blocks and raises as ``save`` does."""
        record = self._read(RECORD_KEY, StateRecord)
        assert record is not None and record.vlsn >= first - 1, (record, first)
        record = msgspec.structs.replace(record, trimmed_to=Vlsn(first - 1), first_segment=first_segment)
        self._store.write([(RECORD_KEY, msgspec.json.encode(record))])

    def restart(self, record: StateRecord) -> None:
        """Saves ``record``, and deletes everything else that belonged to the earlier log. Blocks and raises as ``save``
        does."""
        self._store.write(
            [(RECORD_KEY, msgspec.json.encode(record))],
            deletes=[CHECKPOINT_KEY, IDLE_END_KEY],
            delete_ranges=[_range(prefix) for prefix in PREFIXES.values()],
        )

    def pages(self) -> PageTable:
        """Returns the page table of the log's destinations, which is in the same store."""
        return PageTable(self._store)

    def _rows(self, field: str, prefix: bytes, count: int) -> list[tuple[int, bytes]]:
        """Reads the rows of a table by their names. Raises ``ValueError`` or ``Damaged``."""
        items = self._store.items(*_range(prefix))
        if len(items) != count:
            raise ValueError(f"{field}: {len(items)} rows under keys, the record counts {count}")
        return [(int.from_bytes(key[len(prefix) :], "big"), value) for key, value in items]

    def close(self) -> None:
        self._store.close()

    def _read(self, key: bytes, kind: type[T]) -> T | None:
        value = self._store.get(key)
        if value is None:
            return None
        try:
            return msgspec.json.decode(value, type=kind)
        except JSON_FAULTS as fault:
            if kind is StateRecord:
                _check_level_of(value)
            raise Damaged(f"state: {key.decode()} is not one: {fault}") from fault


@dataclass(frozen=True, slots=True)
class _Puts:
    """The values that one transaction writes. The lives are encoded one by one, since there are many."""

    puts: list[tuple[bytes, bytes]]
    tables: list[tuple[bytes, TableChanges]]

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        yield from self.puts
        for prefix, change in self.tables:
            for producer, life in change.puts:
                yield _key(prefix, producer), life


def _apart(record: StateRecord) -> tuple[StateRecord, dict[str, TableChanges]]:
    """Moves the lives out of a whole record into rows, if its level stores them under keys. For other levels there are
    no rows."""
    if record.level < KEYED_FROM_LEVEL:
        return record, {field: TableChanges((), [], whole=True) for field in PREFIXES}
    parts = {field: getattr(record, field).apart() for field in PREFIXES}
    record = msgspec.structs.replace(record, **{field: table for field, (table, _) in parts.items()})
    return record, {field: changes for field, (_, changes) in parts.items()}


def _key(prefix: bytes, producer: int) -> bytes:
    return prefix + producer.to_bytes(8, "big")


def _range(prefix: bytes) -> tuple[bytes, bytes]:
    return prefix, bytes([prefix[0] + 1])


class _Leveled(msgspec.Struct):
    """The fields that a state record of any level has."""

    level: int = 1


def _check_level_of(value: bytes) -> None:
    try:
        level = msgspec.json.decode(value, type=_Leveled).level
    except JSON_FAULTS:
        return  # not even the level can be read
    check_level(level)


def check_level(level: int, own: Levels | None = None) -> None:
    """Checks that this binary can read a state record of ``level``. Raises ``WrongVersion`` if not."""
    own = own or levels.LEVELS
    if not own.read(level):
        raise unread("a state record", level, own.max, number="level")
