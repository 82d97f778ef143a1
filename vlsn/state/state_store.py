"""The ``state`` store: what the log keeps beside its segments, all of it small.

    checkpoint   where the next open starts to read                     one transaction with ``record``
    record       what entries add up to, as of a VLSN that can no longer change
    idle_end     the synced end of a log that has gone quiet; counts like a checkpoint for what is synced

Values are JSON behind the store's checksum; fields that a later version adds are passed over.  Unlike the
index it cannot always be rebuilt: unreadable, or ending before the log's first VLSN − 1, it is set aside.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from vlsn import levels
from vlsn.errors import Damaged
from vlsn.format.records import GroupEntry
from vlsn.ids import NULL_VLSN, Lsn, Term, Vlsn
from vlsn.levels import Levels, unread
from vlsn.seams import KeyValue
from vlsn.state.producers import ProducersRecord
from vlsn.state.small_state import SmallStateRecord

T = TypeVar("T")

CHECKPOINT_KEY = b"checkpoint"
RECORD_KEY = b"record"
IDLE_END_KEY = b"idle_end"


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Recovery reads from ``scan_lsn``, at or before ``start_lsn``; everything before ``end_lsn`` was synced."""

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
    """Derived from the entries up to ``vlsn``, which is at or below DTVLSN and last_sync."""

    vlsn: Vlsn
    group: GroupEntry | None = None
    group_vlsn: Vlsn = NULL_VLSN
    term_runs: list[tuple[int, int, int]] = []
    """(term, first, last), ascending, over visible blocks; of an embedded log the newest alone."""
    trimmed_to: Vlsn = NULL_VLSN
    """The last VLSN that was cleaned away here."""
    producers: ProducersRecord = msgspec.field(default_factory=ProducersRecord)
    commits: ProducersRecord = msgspec.field(default_factory=ProducersRecord)
    """The transactions that are named by their handles; absent in records of level 1."""
    txn_end: Vlsn = NULL_VLSN
    """The last COMMIT of a transaction at ``vlsn``; absent in records of level 1."""
    small: SmallStateRecord = msgspec.field(default_factory=SmallStateRecord)
    level: int = 1
    """The group's, at ``vlsn``; absent in records of before there were any."""
    level_vlsn: Vlsn = NULL_VLSN
    """The VLSN of the entry that set it, 0 for none."""
    first_segment: int = 0
    """The segment that the log begins in since; what lies before it is no log any more.  0: nothing was cleaned."""


class IdleEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The writer's synced end: every byte before ``lsn``, whose last block ends at ``vlsn`` in ``term``."""

    lsn: Lsn
    term: Term
    vlsn: Vlsn
    dtvlsn: Vlsn = NULL_VLSN
    """The VLSN known durable: the last blocks' headers cannot say that of themselves."""


class StateStore:
    """Reads from any thread; ``save`` on the store's thread."""

    def __init__(self, store: KeyValue) -> None:
        self._store = store

    def checkpoint(self) -> Checkpoint | None:
        """Raises ``Damaged``, like the other reads."""
        return self._read(CHECKPOINT_KEY, Checkpoint)

    def record(self) -> StateRecord | None:
        """Raises ``WrongVersion`` too, of a level that this binary does not read."""
        record = self._read(RECORD_KEY, StateRecord)
        if record is not None:
            check_level(record.level)
            try:
                record.producers.check()
                record.commits.check()
                record.small.check(record.vlsn)
            except ValueError as fault:
                raise Damaged(f"state: {RECORD_KEY.decode()} is not one: {fault}") from fault
        return record

    def idle_end(self) -> IdleEnd | None:
        return self._read(IDLE_END_KEY, IdleEnd)

    def save(
        self,
        *,
        checkpoint: Checkpoint | None = None,
        record: StateRecord | None = None,
        idle_end: IdleEnd | None = None,
    ) -> None:
        """Saves those given, in one transaction; the others stay. Blocking; durable on return. Raises ``LogFailed``."""
        given = (CHECKPOINT_KEY, checkpoint), (RECORD_KEY, record), (IDLE_END_KEY, idle_end)
        self._store.write([(key, msgspec.json.encode(value)) for key, value in given if value is not None])

    def restart(self, record: StateRecord) -> None:
        """Saves ``record``, and drops all of the log that was here before. As ``save``."""
        self._store.write([(RECORD_KEY, msgspec.json.encode(record))], deletes=[CHECKPOINT_KEY, IDLE_END_KEY])

    def close(self) -> None:
        self._store.close()

    def _read(self, key: bytes, kind: type[T]) -> T | None:
        value = self._store.get(key)
        if value is None:
            return None
        try:
            return msgspec.json.decode(value, type=kind)
        except msgspec.MsgspecError as fault:
            if kind is StateRecord:
                _check_level_of(value)
            raise Damaged(f"state: {key.decode()} is not one: {fault}") from fault


class _Leveled(msgspec.Struct):
    """The part that a state record of any level has."""

    level: int = 1


def _check_level_of(value: bytes) -> None:
    try:
        level = msgspec.json.decode(value, type=_Leveled).level
    except msgspec.MsgspecError:
        return  # not even that can be read
    check_level(level)


def check_level(level: int, own: Levels | None = None) -> None:
    """Checks that a state record of ``level`` can be read. Raises ``WrongVersion``."""
    own = own or levels.LEVELS
    if not own.read(level):
        raise unread("a state record", level, own.max, number="level")
