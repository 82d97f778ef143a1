"""The table of producers. A producer is a client that numbers its submissions. The table has the submissions of each
producer that are in the log, so that the master logs no submission twice.

The table is computed from the entries of the log up to some VLSN, without entries that were rolled back. So the table
is the same on every node, also after a change of master, an opening of the log or a rollback:

1. A producer's *life* is a run of its submissions whose sequences rise by one. For each life the table has the next
   sequence, and the VLSNs of the last ``remembered`` submissions. Once ``recent`` other producers have submitted since,
   the table has only the last ``least`` submissions of that life.
2. A producer whose last submission is more than ``silent`` VLSNs back is forgotten. When a new producer would exceed
   the log's limit at that VLSN, the producers with the oldest last submissions are removed. No producer with a
   submission after ``forgotten_to`` was removed. So if a submission after ``forgotten_to`` is not in the table, it was
   never logged. An older submission that is not in the table may have been forgotten.
3. The table, with its limit, can be rolled back to any VLSN from ``settled`` on. Rows that only a rollback to an
   earlier VLSN would need are dropped.
4. If a cleaned log has lost its state record, the table misses the submissions up to ``lacks_to``. Until the missing
   submissions are filled in from another copy of the table, the absence of a submission proves nothing. Meanwhile no
   producer is removed for a new one, since the entry that set the log's limit may be missing, too.

    appended   A/0 A/1 B/0 A/2 …      A: next 3, A/1 is VLSN 2      B: next 1
               VLSN 1   2   3   4     truncate(3):  A: next 2       settle(2): only VLSN 3 and 4 can be undone

``checkpoint`` writes either the lives that changed since the last checkpoint, or all lives. If only changed lives are
written, the caller's cost is constant. If all lives are written, the caller's cost is about 50 ns for each life. All
other work of a checkpoint is done on any thread.

The memory of the table is at most (``recent`` × ``remembered`` + ``producers`` × ``least``) × 24 bytes, 600 bytes for
each producer, and 24 bytes for each submission since the settled VLSN. A submission costs a few operations on dicts and
arrays. The model is Kafka's producer state manager (KIP-98, KIP-360), but without its clocks.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from operator import attrgetter, itemgetter

import msgspec
from msgspec.structs import replace

from vlsn.format.producer_columns import Produced
from vlsn.ids import Vlsn
from vlsn.limits import PRODUCERS_CHANGED_MAX, PRODUCERS_MAX
from vlsn.state.log_table import Encoded, Ended, EvictingTable, TableChanges
from vlsn.state.producer_lives import (
    HEAD,
    SPARE_ROWS,
    Life,
    Part,
    ProducerLimits,
    ProducerPlace,
    Rows,
    last_of,
    read_lives,
    split_lives,
)

__all__ = ["ProducerLimits", "ProducerPlace", "Producers", "ProducersRecord"]

_ROWS = attrgetter("rows")
_LET_GO_AT_ONCE = 256
"""The most settled lives and rows that one call of ``_let_go`` forgets."""


class ProducersRecord(msgspec.Struct, frozen=True):
    """The table of producers as of a VLSN. ``lives`` are ordered by their last submissions (see ``producer_lives``)."""

    forgotten_to: int = 0
    lives: bytes = b""
    lacks_to: int = 0
    """The VLSN up to which the record misses submissions; 0 if it misses none. Older records do not have
    ``lacks_to``."""
    keyed: bool = False
    """True if the lives have keys of their own in the store. Older records, and records below level 2, do not have
    ``keyed``."""
    count: int = 0
    """The number of lives that have keys of their own."""

    def check(self, vlsn: int) -> None:
        """Raises ``ValueError`` for bytes that are not encoded lives."""
        read_lives(self.lives)

    def apart(self) -> tuple[ProducersRecord, TableChanges]:
        """Splits a whole record into a record without lives, and one row for each life."""
        lives = list(split_lives(self.lives))
        return replace(self, lives=b"", keyed=True, count=len(lives)), TableChanges(lives, [], whole=True)

    def together(self, rows: list[tuple[int, bytes]], prefix: bytes) -> ProducersRecord:
        """Returns the record with the lives of ``rows``, which were stored under keys of their own. Raises
        ``ValueError`` for a life that was stored under the wrong key."""
        for producer, life in rows:
            if int.from_bytes(life[:8], "little") != producer or len(life) < HEAD.size:
                raise ValueError(f"the life under key {prefix.hex()}{producer:016x} is of another producer")
        return replace(self, lives=b"".join(life for _, life in sorted(rows, key=lambda row: last_of(row[1]))))


class Producers(EvictingTable[Life]):
    """The table of producers of one log, up to the last VLSN noted."""

    def __init__(self, record: ProducersRecord | None = None, limits: ProducerLimits | None = None) -> None:
        self.limits = limits or ProducerLimits()
        record = record or ProducersRecord()
        super().__init__(silent=self.limits.silent, forgotten_to=record.forgotten_to, keyed=record.keyed)
        self._limits_set: list[tuple[int, int]] = []
        """The changes of the limit on producers, ascending: the VLSN from which on the limit applies, and the limit."""
        self._older: OrderedDict[int, Life] = OrderedDict()
        self._recent: OrderedDict[int, Life] = OrderedDict()
        """The lives of the recent producers by producer, ordered by their last submissions, oldest first. All lives in
        ``_older`` are older."""
        self._take(read_lives(record.lives))
        self._spares: deque[tuple[int, Life]] = deque()
        """Lives that will have more rows than are remembered, each with the VLSN that has to be settled before."""
        self.lacks_to = record.lacks_to
        newest = next(reversed(self._recent.values()), None)
        self.settled = newest.last if newest is not None else self.lacks_to
        self._kept_at = self.settled
        self._changed: dict[int, Rows | None] = {}
        """The rows of the changed lives, so that a checkpoint takes all of them without a lookup. The rows may include
        some that were forgotten since."""
        self._copied_to = 0
        """The highest VLSN of a copy of rows. Later rows may still be appended, but rows up to this VLSN must not
        change."""

    def __len__(self) -> int:
        """Returns the number of producers in the table, including silent ones that are not removed yet."""
        return len(self._older) + len(self._recent)

    # Lookups. ``at`` is the next VLSN of the log.

    def find(self, producer: int, *, at: int) -> Life | None:
        life = self._recent.get(producer) or self._older.get(producer)
        return life if life is not None and life.last + self.limits.silent >= at else None

    @property
    def limit(self) -> int:
        """The limit on the number of producers, set by the newest entry in the log."""
        return self._limits_set[-1][1] if self._limits_set else self.limits.producers

    # Changes of the lives.

    def note(self, rows: Iterable[Produced]) -> None:
        """Notes submissions in log order. The submissions must be after all submissions noted before."""
        recent, silent, changed = self._recent, self.limits.silent, self._changed
        many = self.limits.remembered + SPARE_ROWS + 1
        for row in rows:
            producer, sequence, first, last, term = row
            life = recent.get(producer)
            if life is None:
                self._note_another(row)
                continue
            rows_now = life.rows
            lasts = rows_now.lasts
            if rows_now.begin + len(lasts) != sequence or lasts[-1] + silent < first:
                self._note_another(row)
                continue
            rows_now.firsts.append(first)
            lasts.append(last)
            rows_now.terms.append(term)
            recent.move_to_end(producer)
            changed[producer] = rows_now
            if len(lasts) == many:
                self._let_go(2)
                self._spares.append((last, life))

    def _note_another(self, row: Produced) -> None:
        """Notes a submission of a producer that is not a recent one, or a submission that begins a new life."""
        producer, sequence, first, last, term = row
        life = self._older.pop(producer, None) or self._recent.pop(producer, None)
        if life is not None and (life.next != sequence or life.last + self.limits.silent < first):
            self._ended.append(Ended(first, producer, life, self._evicted_to))
            life = None
        if life is None:
            self._make_room(first)
            life = Life.begun(producer, sequence, first, last, term)
        else:
            life.rows.firsts.append(first)
            life.rows.lasts.append(last)
            life.rows.terms.append(term)
        self._recent[producer] = life
        self._changed[producer] = life.rows
        if len(self._recent) > self.limits.recent:
            self._cross(first)
        self._let_go(2)
        if len(self._changed) > PRODUCERS_CHANGED_MAX:
            self._whole = True
            self._changed.clear()

    def _cross(self, at: int) -> None:
        """Moves the recent producer with the oldest last submission from the recent producers to the older ones."""
        producer, life = self._recent.popitem(last=False)
        self._older[producer] = life
        life.cross(at)
        if len(life) > self.limits.least:
            self._changed[producer] = life.rows
            if len(life) > self.limits.least + SPARE_ROWS:
                self._spares.append((at, life))

    def _make_room(self, at: int) -> None:
        limit = PRODUCERS_MAX if self.lacks_to else self._limit_at(at)
        while len(self) >= limit:
            producer, oldest = (self._older or self._recent).popitem(last=False)
            self._ended.append(Ended(at, producer, oldest, self._evicted_to))
            self._evicted_to = max(self._evicted_to, oldest.last)
            self._changed[producer] = None

    def _limit_at(self, vlsn: int) -> int:
        return next((limit for since, limit in reversed(self._limits_set) if since < vlsn), self.limits.producers)

    def limit_from(self, vlsn: int, producers: int) -> None:
        """Notes that an entry at ``vlsn`` sets the limit on producers for later VLSNs."""
        assert not self._limits_set or self._limits_set[-1][0] <= vlsn
        self._limits_set.append((vlsn, producers))

    def limits_behind(self, vlsn: int, limits: list[tuple[int, int]]) -> None:
        """Replaces the changes of the limit on producers after ``vlsn`` with ``limits``."""
        self._limits_set = [limit for limit in self._limits_set if limit[0] <= vlsn] + limits

    def _let_go(self, most: int) -> None:
        """Forgets lives and rows that no rollback can bring back."""
        ended, spares, settled = self._ended, self._spares, self.settled
        for _ in range(most):
            if ended and ended[0].at <= settled:
                ended.popleft()
            if spares and spares[0][0] <= settled:
                life = spares.popleft()[1]
                life.forget_spare(settled, self.limits)
                if len(life) > self.limits.remembered + SPARE_ROWS:
                    spares.append((life.last, life))

    def check_fill(self, known: Producers, vlsn: Vlsn) -> None:
        """Compares this table with ``known``, another copy's table as of ``vlsn``. Raises ``ValueError`` unless
        ``known`` misses fewer submissions than this table, and agrees with all submissions in this table."""
        self.check_exact(vlsn, "producers")
        if known.lacks_to >= self.lacks_to:
            raise ValueError(f"producers that are lost up to VLSN {known.lacks_to}; here they are to {self.lacks_to}")
        self._compare(known, vlsn)

    def fill(self, known: Producers, vlsn: Vlsn) -> None:
        """Replaces this table's content with that of ``known``, which has passed ``check_fill``, and adds this log's
        submissions after ``vlsn`` again. ``known`` must have the limit that was set in the log by ``vlsn``, and must
        not be used afterwards."""
        known._limits_set += [limit for limit in self._limits_set if limit[0] > vlsn]
        lives = (*self._lives(), *(ended.row for ended in self._ended))
        known.note(sorted((row for life in lives for row in life.behind(vlsn)), key=itemgetter(2)))
        self._older, self._recent, self._limits_set = known._older, known._recent, known._limits_set
        self._ended, self._spares, self._evicted_to = known._ended, known._spares, known._evicted_to
        self.lacks_to, self.settled = known.lacks_to, vlsn
        self.keep_all()

    def _compare(self, known: Producers, vlsn: Vlsn) -> None:
        """Compares this table with ``known``. Both tables follow from the same log. After ``lacks_to`` both tables must
        agree on all remembered submissions."""
        limits, theirs = self.limits, {life.producer: life for life in known._lives()}
        # A lower limit takes effect only when the next new producer submits; no producer is removed before.
        most = PRODUCERS_MAX if known._limits_set else limits.producers
        if len(theirs) > most or max(map(len, theirs.values()), default=0) > limits.remembered:
            raise ValueError(f"more than {most} producers, or of one over {limits.remembered} submissions")
        if max(known.settled, known._evicted_to) > vlsn:
            raise ValueError(f"producers as of VLSN {vlsn} that submitted later")
        mine = {life.producer: life for life in self._as_of(vlsn)[0]}
        for producer in mine.keys() | theirs.keys():
            noted, told = (
                lives[producer].part(self.lacks_to, vlsn, limits) if producer in lives else None
                for lives in (mine, theirs)
            )
            is_forgotten = producer not in theirs and mine[producer].as_of(vlsn).last <= known._evicted_to
            if noted != told and not is_forgotten and not _goes_on(noted, told, known._evicted_to):
                raise ValueError(f"producer {producer:016x} has other submissions in the other copy than in this log")

    def settle(self, vlsn: Vlsn) -> None:
        """Settles everything up to ``vlsn``, which no rollback can undo."""
        self.settled = max(self.settled, vlsn)
        while len(self._limits_set) > 1 and self._limits_set[1][0] <= vlsn:
            del self._limits_set[0]
        self._let_go(_LET_GO_AT_ONCE)

    def truncate(self, last: Vlsn) -> None:
        """Undoes all submissions after ``last``, which must not be below the settled VLSN."""
        lives, self._evicted_to = self._as_of(last)
        for life in lives:
            life.truncate(last, apart=last < self._copied_to)
        self._copied_to = min(self._copied_to, last)
        self._take(lives)
        self._ended = deque(ended for ended in self._ended if ended.at <= last)
        self._spares = deque(spare for spare in self._spares if spare[0] <= last)
        while self._limits_set and self._limits_set[-1][0] > last:
            self._limits_set.pop()
        if last < self._kept_at:
            self.keep_all()
        for producer in self._changed:
            known = self._recent.get(producer) or self._older.get(producer)
            self._changed[producer] = known.rows if known is not None else None

    def _take(self, lives: list[Life]) -> None:
        """Replaces the table's lives with ``lives``, which are ordered by their last submissions."""
        older = max(0, len(lives) - self.limits.recent)
        self._older = OrderedDict((life.producer, life) for life in lives[:older])
        self._recent = OrderedDict((life.producer, life) for life in lives[older:])

    # Copies for checkpoints and restores.

    def snapshot(self, vlsn: Vlsn) -> Callable[[], ProducersRecord]:
        """Copies the table. The returned function makes the record on any thread, since encoding up to 53 MB takes
        long."""
        ended, forgotten_to = self._undone(vlsn)
        self._copied_to = max(self._copied_to, vlsn)
        lives = self._copied(ended)
        lacks_to, limits = self.lacks_to, self.limits
        return lambda: ProducersRecord(
            forgotten_to, b"".join([life for _, life in _encoded(_in_order(lives, vlsn), vlsn, limits)]), lacks_to
        )

    def checkpoint(self, vlsn: Vlsn) -> Callable[[], tuple[ProducersRecord, TableChanges]]:
        """Copies the changes since the last checkpoint, as of ``vlsn``. The caller must store them. The returned
        function makes a record without lives and the changed rows, on any thread."""
        ended, forgotten_to = self._undone(vlsn)
        self._copied_to = max(self._copied_to, vlsn)
        lacks_to, limits = self.lacks_to, self.limits
        if vlsn < max(self.settled, self._kept_at):
            self.keep_all()
        whole, changed = self._whole, {} if self._whole else self._changed
        lives = self._copied(ended) if whole else {producer: life.rows for producer, life in ended.items()}
        count = self._count_at(vlsn, ended)
        self._changed, self._kept_at, self._whole = self._changed_behind(vlsn), int(vlsn), False

        def put_together() -> tuple[ProducersRecord, TableChanges]:
            then = {**changed, **lives}
            there = {producer: rows for producer, rows in then.items() if rows is not None and rows.upto(vlsn)}
            deletes = [producer for producer in changed if producer not in there]
            record = ProducersRecord(forgotten_to, b"", lacks_to, keyed=True, count=count)
            return record, TableChanges(_encoded(there, vlsn, limits), deletes, whole)

        return put_together

    def _copied(self, ended: Mapping[int, Life]) -> dict[int, Rows]:
        """Copies the rows of all lives. A life in ``ended`` replaces the later life of the same producer."""
        rows = dict(zip(chain(self._older, self._recent), map(_ROWS, self._lives()), strict=True))
        rows.update((producer, life.rows) for producer, life in ended.items())
        return rows

    def _lives(self) -> Iterator[Life]:
        return chain(self._older.values(), self._recent.values())

    def _heard_behind(self, vlsn: int) -> Iterator[Life]:
        """Yields only the lives that changed after ``vlsn``."""
        for life in reversed(self._recent.values()):
            if life.last <= vlsn:
                break
            yield life
        # these lives are also ordered by the time at which they left the recent ones
        for life in reversed(self._older.values()):
            if life.last <= vlsn and not (life.rows.crossed and life.rows.crossed[-1] > vlsn):
                break
            yield life

    def _changed_behind(self, vlsn: int) -> dict[int, Rows | None]:
        changed: dict[int, Rows | None] = {life.producer: life.rows for life in self._heard_behind(vlsn)}
        for ended in self._ended_behind(vlsn):
            changed.setdefault(ended.name, None)
        return changed

    def _count_at(self, vlsn: int, ended: dict[int, Life]) -> int:
        begun_since = sum(1 for life in self._heard_behind(vlsn) if not life.rows.upto(vlsn))
        return len(self) - begun_since + sum(1 for life in ended.values() if life.rows.upto(vlsn))

    def _as_of(self, vlsn: int) -> tuple[list[Life], int]:
        """Returns the lives that existed at ``vlsn``, with their later rows, and the last VLSN evicted by then."""
        ended, evicted_to = self._undone(vlsn)
        placed = [(life.rows.upto(vlsn), life) for life in chain(self._lives(), ended.values())]
        heard = sorted(((life.rows.lasts[end - 1], life) for end, life in placed if end), key=itemgetter(0))
        return [life for _, life in heard], evicted_to


def _goes_on(noted: Part, told: Part, forgotten_to: int) -> bool:
    """Returns whether ``told`` is the end of ``noted``, and the limit has evicted the earlier submissions. A table with
    a missing part evicts no producer."""
    if noted is None or told is None:
        return False
    before = told[0] - noted[0]
    ends = tuple(column[before:] for column in noted[1:]) if 0 < before < len(noted[2]) else ()
    return ends == told[1:] and noted[2][before - 1] <= forgotten_to


def _encoded(lives: Mapping[int, Rows], vlsn: int, limits: ProducerLimits) -> Encoded[tuple[int, Rows]]:
    """Encodes ``lives`` as of ``vlsn``. All ``lives`` must have existed at ``vlsn``."""

    def encode(life: tuple[int, Rows]) -> tuple[int, bytes]:
        producer, rows = life
        end = rows.upto(vlsn)
        return producer, rows.encode(producer, rows.start(end, vlsn, limits), end)

    return Encoded(lives.items(), encode)


def _in_order(lives: Mapping[int, Rows], vlsn: int) -> dict[int, Rows]:
    """Returns the lives that existed at ``vlsn``, ordered by their last submissions at that time."""
    heard = {producer: rows.lasts[end - 1] for producer, rows in lives.items() if (end := rows.upto(vlsn))}
    return {producer: lives[producer] for producer in sorted(heard, key=heard.__getitem__)}
