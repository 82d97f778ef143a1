"""The acknowledgements of destinations (named subscriptions). COMMIT entries contain acknowledgements as notes. Folding
(adding up) the notes gives a table that is the same on every node.

    COMMIT 10  {"8a87…": {"begin": 5}}            1–4 are no messages, 5 and later ones are to be delivered
    COMMIT 44  {"8a87…": {"done": {5, 6, 9}}}     acknowledged: 1–6 and 9
    COMMIT 60  {"8a87…": {"done": {7, 8}, …}}     1–9

1. One set of VLSNs holds all acknowledgements of a destination. The set also contains the VLSNs between messages, so
   acknowledgements in order make a single interval of VLSNs. The set's first interval ends at the *floor*.
2. A note of acknowledgements is valid from the VLSN of its COMMIT entry on. A note is folded once its COMMIT is durable
   and synced on this node. No rollback can undo a durable COMMIT, so a fold is never undone. The table keeps all other
   notes unfolded.
3. The fold checks the limits in log order, so every node ignores the same notes that exceed a limit. A master refuses
   notes over a limit before they are logged, so the log contains such a note only by an error.
4. The table can be rolled back to any VLSN from ``settled`` on, since notes are kept until a checkpoint has settled
   them.
5. If a cleaned log has lost its state record, its table misses all notes up to ``lacks_to``, until these notes are
   filled in from another copy of the table.

In memory, the table needs 16 bytes for each interval, and the notes since the last checkpoint as they were logged. A
destination has at most ``ACK_INTERVALS_MAX`` intervals.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from vlsn.errors import BadBody
from vlsn.format.records import JSON_FAULTS, AckNote
from vlsn.format.vlsn_set import Vlsns, VlsnSet
from vlsn.ids import Vlsn
from vlsn.limits import ACK_INTERVALS_MAX, DEAD_LETTERS_MAX, DESTINATIONS_MAX, TRIES_KEPT_MAX
from vlsn.state.log_table import Encoded, LogTable, TableChanges

_UUID: Final = re.compile(r"[0-9a-f]{16}\Z", re.ASCII)
_TRY_MAX: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class AckLimits:
    """The limits of the table of acknowledgements. The limits must be the same on every node; otherwise the nodes'
    tables would differ."""

    destinations: int = DESTINATIONS_MAX
    intervals: int = ACK_INTERVALS_MAX
    tries: int = TRIES_KEPT_MAX
    dead: int = DEAD_LETTERS_MAX


class AckedRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One destination's acknowledgements, with packed sets of VLSNs (``format/vlsn_set``)."""

    since: int
    done: bytes = b""
    tries: dict[int, bytes] = {}
    dead: bytes = b""


class AcksRecord(msgspec.Struct, frozen=True):
    """The acknowledgements of all destinations as of a VLSN, by the destinations' uuids."""

    tables: dict[str, AckedRecord] = {}
    lacks_to: int = 0
    """The VLSN up to which the record misses notes of acknowledgements; 0 if it misses none."""
    keyed: bool = False
    """True if each destination's acknowledgements have a key of their own in the store."""
    count: int = 0
    """The number of destinations that have keys of their own."""

    def check(self, vlsn: int) -> None:
        """Raises ``ValueError`` for acknowledgements that are not possible as of ``vlsn``."""
        for uuid, table in self.tables.items():
            if _UUID.match(uuid) is None or not 0 < table.since <= vlsn:
                raise ValueError(f"acknowledgements of {uuid[:20]!r} since VLSN {table.since}, the record is of {vlsn}")
            try:
                Acked.of(table)
            except BadBody as fault:
                raise ValueError(f"acknowledgements of {uuid}: {fault}") from fault

    def apart(self) -> tuple[AcksRecord, TableChanges]:
        """Splits a whole record into a record without acknowledgements, and one row for each destination."""
        puts = [(int(uuid, 16), msgspec.json.encode(table)) for uuid, table in self.tables.items()]
        return replace(self, tables={}, keyed=True, count=len(puts)), TableChanges(puts, [], whole=True)

    def together(self, rows: list[tuple[int, bytes]], prefix: bytes) -> AcksRecord:
        """Returns the record with the acknowledgements of ``rows``, which were stored under keys of their own. Raises
        ``ValueError`` for a row that cannot be decoded."""
        try:
            tables = {f"{uuid:016x}": msgspec.json.decode(value, type=AckedRecord) for uuid, value in rows}
        except JSON_FAULTS as fault:
            raise ValueError(f"acknowledgements: {fault}") from fault
        return replace(self, tables=tables)


class Tries(NamedTuple):
    """How often each message was delivered, for messages delivered twice or more. The messages are in the order of
    their VLSNs."""

    vlsns: Vlsns = np.empty(0, np.int64)
    counts: Vlsns = np.empty(0, np.int64)

    def of(self, vlsn: int) -> int:
        """Returns how often the message at ``vlsn`` was delivered, or 0 if that is not known."""
        at = int(np.searchsorted(self.vlsns, vlsn))
        return int(self.counts[at]) if at < len(self.vlsns) and self.vlsns[at] == vlsn else 0

    def only(self, mask: npt.NDArray[np.bool_]) -> Tries:
        return self if mask.all() else Tries(self.vlsns[mask], self.counts[mask])

    def with_set(self, vlsns: Vlsns, count: int, most: int) -> Tries:
        """Sets the number of deliveries of the messages ``vlsns`` to ``count``. At most ``most`` messages are kept,
        those with the lowest VLSNs."""
        keep = ~np.isin(self.vlsns, vlsns, assume_unique=True)
        together = np.concatenate((self.vlsns[keep], vlsns))
        counts = np.concatenate((self.counts[keep], np.full(len(vlsns), count, np.int64)))
        order = np.argsort(together, kind="stable")[:most]
        return Tries(together[order], counts[order])


@dataclass(frozen=True, slots=True)
class Acked:
    """The acknowledgements of one destination. Each change makes a new object.

    ``since`` is the VLSN of the COMMIT that has set the destination's first VLSN. Each later change of the first VLSN
    changes ``since``.
    """

    since: Vlsn
    done: VlsnSet
    """The acknowledged VLSNs. Dead messages (delivered too often) are included."""
    tries: Tries = field(default_factory=Tries)
    dead: VlsnSet = field(default_factory=VlsnSet)

    @property
    def floor(self) -> Vlsn:
        """The VLSN up to which no message is delivered any more."""
        return Vlsn(self.done.floor)

    @property
    def kept_floor(self) -> Vlsn:
        """The VLSN up to which no message has to be kept. Dead messages are kept, since an operator may have them
        delivered again."""
        return Vlsn(min(self.done.floor, int(self.dead.firsts[0]) - 1)) if self.dead else self.floor

    def lets_go(self, vlsns: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Marks the messages that a cleaning may remove: those that are acknowledged and not dead."""
        done = self.done.has(vlsns)
        return done & ~self.dead.has(vlsns) if self.dead else done

    def noted(self, vlsn: Vlsn, note: AckNote, limits: AckLimits) -> Acked:
        """Returns the acknowledgements after ``note`` is applied, which is in the COMMIT at ``vlsn``. Raises
        ``BadBody`` if a set in ``note`` cannot be decoded."""
        done, tries, dead = self.done, self.tries, self.dead
        if note.again:
            again = VlsnSet.unpack(note.again)
            done, dead = done.minus(again), dead.minus(again)
            tries = tries.only(~again.has(tries.vlsns))
        fresh = VlsnSet.unpack(note.done).upto(vlsn)
        if fresh:
            done = done.union(fresh)
            if dead:
                dead = dead.minus(fresh)  # an acknowledged message is no longer dead
            if note.dead:
                dead = dead.union(VlsnSet.unpack(note.dead).upto(vlsn))
                if dead.count > limits.dead:
                    dead = VlsnSet.of(dead.vlsns()[-limits.dead :])
        for count, packed in note.tries.items():
            if 2 <= count <= _TRY_MAX:
                tries = tries.with_set(VlsnSet.unpack(packed).upto(vlsn).vlsns(), count, limits.tries)
        if done.intervals > limits.intervals:
            return self
        return Acked(self.since, done, tries.only(~done.has(tries.vlsns)) if len(tries.vlsns) else tries, dead)

    def record(self) -> AckedRecord:
        tries = {
            count: VlsnSet.of(self.tries.vlsns[self.tries.counts == count]).pack()
            for count in np.unique(self.tries.counts).tolist()
        }
        return AckedRecord(self.since, self.done.pack(), tries, self.dead.pack())

    @classmethod
    def of(cls, record: AckedRecord) -> Acked:
        """Decodes ``record``. Raises ``BadBody`` if a set in it cannot be decoded."""
        tries = Tries()
        for count, packed in record.tries.items():
            tries = tries.with_set(VlsnSet.unpack(packed).vlsns(), count, _TRY_MAX)
        return cls(Vlsn(record.since), VlsnSet.unpack(record.done), tries, VlsnSet.unpack(record.dead))


Tables = dict[str, Acked]
_Noted = tuple[Vlsn, Mapping[str, AckNote]]
_vlsn_of: Callable[[_Noted], Vlsn] = itemgetter(0)


class AckTable(LogTable):
    """The acknowledgements of all destinations of one log. The table is used on the owner's thread only."""

    def __init__(self, record: AcksRecord | None = None, limits: AckLimits | None = None, *, vlsn: int = 0) -> None:
        """Builds the table from ``record``, the table as of ``vlsn``."""
        self.limits = limits or AckLimits()
        record = record or AcksRecord()
        self._settled: Tables = {uuid: Acked.of(table) for uuid, table in record.tables.items()}
        self.folded: Tables = dict(self._settled)
        """The acknowledgements of each destination as of ``folded_to``, by the destinations' uuids. Only ``AckTable``
        changes this dict."""
        self._notes: list[_Noted] = []
        """The notes of acknowledgements after VLSN ``settled``, in log order."""
        self._done = 0
        """The number of notes in ``_notes`` that are folded already."""
        self.lacks_to = record.lacks_to
        self.settled = max(vlsn, record.lacks_to)
        self.folded_to = Vlsn(self.settled)
        """The VLSN up to which notes are folded. The log is durable, and synced on this node, up to this VLSN."""
        self._kept: Tables | None = dict(self._settled) if record.keyed else None
        """The tables as the last checkpoint wrote them. None means that the next checkpoint writes all tables."""

    def __len__(self) -> int:
        return len(self.folded)

    @property
    def coming(self) -> Vlsn | None:
        """The first VLSN of the destinations that are created or moved by a note that is not folded yet. None if no
        unfolded note creates or moves a destination."""
        told = self._notes[self._done :]
        begins = [(note.begin or vlsn + 1) for vlsn, notes in told for note in notes.values() if note.begin is not None]
        return Vlsn(min(begins)) if begins else None

    # Changes of the acknowledgements.

    def note(self, vlsn: Vlsn, notes: Mapping[str, AckNote]) -> None:
        """Adds the notes of the COMMIT at ``vlsn``, which is after all COMMITs added before. The notes are not folded
        yet."""
        self._notes.append((vlsn, notes))

    def advance(self, vlsn: Vlsn) -> None:
        """Folds the notes up to ``vlsn``. The log must be durable, and synced on this node, up to ``vlsn``, so that no
        rollback undoes the folded notes."""
        if vlsn <= self.folded_to:
            return
        self.folded_to = vlsn
        if self._done < len(self._notes):
            end = bisect_right(self._notes, vlsn, lo=self._done, key=_vlsn_of)
            _fold(self.folded, self._notes[self._done : end], self.limits)
            self._done = end

    def settle(self, vlsn: Vlsn) -> None:
        """Settles all notes up to ``vlsn``, which must be durable and synced on this node. After ``settle``, the table
        cannot be rolled back to before ``vlsn``."""
        self.advance(vlsn)
        if vlsn <= self.settled:
            return
        self.settled = vlsn
        end = bisect_right(self._notes, vlsn, key=_vlsn_of)
        if end == self._done:
            self._settled = dict(self.folded)
        else:
            _fold(self._settled, self._notes[:end], self.limits)
        del self._notes[:end]
        self._done -= end

    def truncate(self, last: Vlsn) -> None:
        """Undoes all notes after ``last``, which must not be below the settled VLSN. If an operator truncates the log,
        ``last`` may be below the folded VLSN."""
        del self._notes[bisect_right(self._notes, last, key=_vlsn_of) :]
        if last < self.folded_to:
            self._unfold()
            _fold(self.folded, self._notes, self.limits)
            self.folded_to, self._done = last, len(self._notes)

    def _unfold(self) -> None:
        """Sets the folded tables back to the VLSN ``settled``."""
        self.folded.clear()
        self.folded.update(self._settled)

    # The missing part of the acknowledgements.

    def lose_before(self, vlsn: Vlsn) -> None:
        super().lose_before(vlsn)
        self.folded_to = Vlsn(self.settled)

    def check_fill(self, known: AckTable, vlsn: Vlsn) -> None:
        """Compares this table with ``known``, another copy's table as of ``vlsn``. The two tables must agree on the
        destinations that began after ``lacks_to``. Raises ``ValueError`` if the tables disagree."""
        self.check_exact(vlsn, "acknowledgements")
        mine = {uuid: table for uuid, table in self._as_of(vlsn).items() if table.since > self.lacks_to}
        theirs = {uuid: table for uuid, table in known._settled.items() if table.since > self.lacks_to}
        for uuid in sorted(mine.keys() | theirs.keys()):
            one, other = mine.get(uuid), theirs.get(uuid)
            if one is None or other is None or one.record() != other.record():
                raise ValueError(f"destination {uuid} has other acknowledgements in the other copy than in this log")

    def fill(self, known: AckTable, vlsn: Vlsn) -> None:
        """Replaces this table's content with that of ``known``, which has passed ``check_fill``, and applies this log's
        notes after ``vlsn`` again."""
        folded_to = self.folded_to
        del self._notes[: bisect_right(self._notes, vlsn, key=_vlsn_of)]
        self._settled, self._kept, self._done = known._settled, None, 0
        self._unfold()
        self.lacks_to, self.settled, self.folded_to = known.lacks_to, vlsn, vlsn
        self.advance(folded_to)

    # Copies for checkpoints and restores.

    def _as_of(self, vlsn: Vlsn) -> Tables:
        """Copies the tables as of ``vlsn``."""
        return self._copy(vlsn)()

    def _copy(self, vlsn: Vlsn) -> Callable[[], Tables]:
        tables, notes, limits = dict(self._settled), self._notes, self.limits
        end = bisect_right(notes, vlsn, key=_vlsn_of)
        if end == self._done:
            tables, notes = dict(self.folded), []
        else:
            notes = notes[:end]

        def folded() -> Tables:
            _fold(tables, notes, limits)
            notes.clear()
            return tables

        return folded

    def snapshot(self, vlsn: Vlsn) -> Callable[[], AcksRecord]:
        """Copies the table. The returned function makes the record from the copy, on any thread."""
        folded, lacks_to = self._copy(vlsn), self.lacks_to
        return lambda: AcksRecord({uuid: table.record() for uuid, table in sorted(folded().items())}, lacks_to)

    def keep_all(self) -> None:
        """Makes the next checkpoint write the tables of all destinations."""
        self._kept = None

    def checkpoint(self, vlsn: Vlsn) -> Callable[[], tuple[AcksRecord, TableChanges]]:
        """Copies the changes since the last checkpoint, as of ``vlsn``, which must be settled. The returned function
        makes a record without tables and the changed rows, on any thread."""
        tables, kept = self._as_of(vlsn), self._kept
        before = kept or {}
        changed = {uuid: table for uuid, table in tables.items() if before.get(uuid) is not table}
        deletes = [int(uuid, 16) for uuid in before if uuid not in tables]
        self._kept = tables
        record = AcksRecord({}, self.lacks_to, keyed=True, count=len(tables))
        return lambda: (record, TableChanges(Encoded(changed.items(), _encoded), deletes, whole=kept is None))


def _encoded(row: tuple[str, Acked]) -> tuple[int, bytes]:
    return int(row[0], 16), msgspec.json.encode(row[1].record())


def _fold(tables: Tables, notes: Iterable[_Noted], limits: AckLimits) -> None:
    for vlsn, each in notes:
        for uuid, note in each.items():
            if note.over:
                tables.pop(uuid, None)
                continue
            if note.begin is not None and _UUID.match(uuid):
                if uuid not in tables and len(tables) >= limits.destinations:
                    continue
                begin = min(note.begin or vlsn + 1, vlsn + 1)
                tables[uuid] = Acked(vlsn, VlsnSet.between(1, begin - 1))
            known = tables.get(uuid)
            if known is not None:
                try:
                    tables[uuid] = known.noted(vlsn, note, limits)
                except BadBody:
                    continue  # every node ignores the same notes
