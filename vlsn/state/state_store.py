"""The ``state`` store: the log's small metadata beside its segments.

    checkpoint   where the next open starts to read                     one transaction with ``record``
    record       the state that follows from the entries up to a durable VLSN
    idle_end     the synced end of a log that has gone quiet

    p ‖ u64      one producer's life (``producer_lives``) as of the record's VLSN, under the producer (big-endian)
    t ‖ u64      the same for one transaction, under its handle
    a ‖ u64      the acknowledgements of one destination, JSON, under its uuid (big-endian)
    g ‖ …        the page table of destinations (``pages/table``)

The values are JSON with the store's checksum, except for producers' lives. Fields that a later version adds are
ignored. From level 2 on, lives have keys of their own, so that a checkpoint writes only the lives that changed. Below
level 2 the state record contains the producers' lives. Unlike the index, the ``state`` store cannot always be rebuilt
from the log. A ``state`` store is set aside if it cannot be read, or if there is a gap between its last VLSN and the
log's first VLSN.
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
"""For each table with keys of its own (a field of the state record), the first byte of the keys. Keys of other tables
begin with other bytes."""
KEYED_FROM_LEVEL = 2
"""The level from which on producers' lives have keys of their own. A binary of an earlier level would see no lives in a
store with such keys."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint. The next recovery starts to read the log at ``scan_lsn``, which is at or before ``start_lsn``.
    Everything before ``end_lsn`` was synced."""

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
    """The state that follows from the entries up to ``vlsn``. ``vlsn`` is durable, and synced on this node.

    All fields except ``OWN_FIELDS`` follow from the entries, and are the same in every copy of the log.
    """

    vlsn: Vlsn
    group: GroupEntry | None = None
    group_vlsn: Vlsn = NULL_VLSN
    term_runs: list[tuple[int, int, int]] = []
    """The visible blocks' terms, ascending, each with its first and last VLSN. The record of an embedded log has only
    the newest term."""
    trimmed_to: Vlsn = NULL_VLSN
    """The last VLSN that was cleaned away in this copy of the log."""
    producers: ProducersRecord = msgspec.field(default_factory=ProducersRecord)
    commits: ProducersRecord = msgspec.field(default_factory=ProducersRecord)
    """The transactions that have handles (numbers that identify commits); absent in records of level 1."""
    txn_end: Vlsn = NULL_VLSN
    """The VLSN of the last COMMIT of a transaction up to ``vlsn``; absent in records of level 1."""
    small: SmallStateRecord = msgspec.field(default_factory=SmallStateRecord)
    acks: AcksRecord = msgspec.field(default_factory=AcksRecord)
    """The acknowledgements of destinations; absent in records of levels 1 and 2."""
    level: int = 1
    """The group's level (version of the formats) at ``vlsn``; absent in records that are older than levels."""
    level_vlsn: Vlsn = NULL_VLSN
    """The VLSN of the entry that set the level; 0 if no entry has set it."""
    first_segment: int = 0
    """The segment in which the log begins after it was cleaned; earlier segments no longer belong to the log. 0 if the
    log was never cleaned."""
    settings: Settings = Settings()
    """The group's settings at ``vlsn``, except the level."""
    settings_vlsn: Vlsn = NULL_VLSN
    """The VLSN of the entry that set the newest of the settings; 0 if no entry has set any."""
    founding: str = ""
    """The log's name (``own_entries.founding_of``). The name is empty if an earlier version has cleaned away the first
    entry, which contains the name."""

    def check(self) -> None:
        """Raises ``ValueError`` for a record that no log can produce."""
        for table in (self.producers, self.commits, self.acks, self.small):
            table.check(self.vlsn)


OWN_FIELDS: Final = ("term_runs", "txn_end", "trimmed_to", "first_segment")
"""The fields of a state record that differ between copies of the log, since they depend on the first VLSN of a copy.
Code that makes, stores, sends, fetches or restores a record must carry all other fields with it
(``tests/seam/test_carried.py``)."""


class IdleEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a log that has gone quiet: every byte before ``lsn`` is synced, and the last block ends at ``vlsn`` in
    ``term``."""

    lsn: Lsn
    term: Term
    vlsn: Vlsn
    dtvlsn: Vlsn = NULL_VLSN
    """The durable end (DTVLSN), which the headers of the last blocks cannot state."""


@dataclass(slots=True)
class StoredEnds:
    """The ends up to which the log was synced by a ``state`` store: the checkpoint and the idle end."""

    checkpoint: Checkpoint | None
    idle: IdleEnd | None

    @property
    def ends(self) -> list[Lsn]:
        """The LSNs (exclusive) up to which the log was synced."""
        ends = [self.idle.lsn] if self.idle is not None else []
        if self.checkpoint is not None:
            ends.append(Lsn(self.checkpoint.end_lsn + FRAME_BYTES + CheckpointEnd.LAYOUT.size))
        return ends

    @property
    def dtvlsn(self) -> int:
        return max(each.dtvlsn if each is not None else 0 for each in (self.checkpoint, self.idle))


class StateStore:
    """The ``state`` store of one log. The store may be read on any thread. ``save`` is called on the store's thread
    only."""

    def __init__(self, store: KeyValue) -> None:
        self._store = store

    def checkpoint(self) -> Checkpoint | None:
        """Reads the checkpoint. Raises ``Damaged``, as all reads of the store do."""
        return self._read(CHECKPOINT_KEY, Checkpoint)

    def record(self) -> StateRecord | None:
        """Returns the state record with all rows of its tables, whether the rows are in the record or under keys of
        their own. Raises ``Damaged``, or ``WrongVersion`` for a level that this binary cannot read."""
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
        """Reads all stored values except pages, to verify their checksums. Raises ``Damaged`` if a checksum does not
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
        """Saves the arguments that are not None, in one transaction. Values of arguments that are None stay as they are
        in the store. ``changes`` are the changed rows of ``record``, by the record's fields; the other rows stay as in
        the last save. The call blocks, and the values are durable on return. Raises ``LogFailed`` if the store cannot
        be written."""
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
        """Saves, in the present state record, where the log begins after it was cleaned. Blocks, and raises the errors
        of ``save``."""
        record = self._read(RECORD_KEY, StateRecord)
        assert record is not None and record.vlsn >= first - 1, (record, first)
        record = msgspec.structs.replace(record, trimmed_to=Vlsn(first - 1), first_segment=first_segment)
        self._store.write([(RECORD_KEY, msgspec.json.encode(record))])

    def restart(self, record: StateRecord) -> None:
        """Saves ``record``, and deletes everything else that belonged to the earlier log. Blocks, and raises the errors
        of ``save``."""
        self._store.write(
            [(RECORD_KEY, msgspec.json.encode(record))],
            deletes=[CHECKPOINT_KEY, IDLE_END_KEY],
            delete_ranges=[_range(prefix) for prefix in PREFIXES.values()],
        )

    def pages(self) -> PageTable:
        """Returns the table of destinations' pages, which is in the same store."""
        return PageTable(self._store)

    def _rows(self, field: str, prefix: bytes, count: int) -> list[tuple[int, bytes]]:
        """Reads the rows of a table, each with its name. Raises ``ValueError`` or ``Damaged``."""
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
    """The values that one transaction writes. Producers' lives are encoded one by one, since there are many."""

    puts: list[tuple[bytes, bytes]]
    tables: list[tuple[bytes, TableChanges]]

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        yield from self.puts
        for prefix, change in self.tables:
            for producer, life in change.puts:
                yield _key(prefix, producer), life


def _apart(record: StateRecord) -> tuple[StateRecord, dict[str, TableChanges]]:
    """Moves the lives out of a whole record into rows, if the record's level stores lives under keys of their own. For
    a lower level there are no rows."""
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
        return  # even the level cannot be read
    check_level(level)


def check_level(level: int, own: Levels | None = None) -> None:
    """Raises ``WrongVersion`` if this binary cannot read a state record of ``level``."""
    own = own or levels.LEVELS
    if not own.read(level):
        raise unread("a state record", level, own.max, number="level")
