"""The table of transactions that have handles (numbers that identify commits): which of these transactions are in a
log, and at which VLSNs.

The table works like the table of producers (``producers.py``), and has the same record, but each of its names occurs
only once. The rows are in the order of the log. When there are too many rows, the oldest row is removed.

    note     id → (first, last, term), at the end       one dictionary entry a transaction
    find     the place of a commit that is asked again
    undone   the rows that a rollback brings back: rows removed to make room for the commits that it undoes
    fill     if the table's beginning is missing: takes it from another copy, and adds the rows noted here later
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import itemgetter
from struct import Struct
from typing import NamedTuple

from vlsn.format.producer_columns import Produced
from vlsn.ids import Term, Vlsn
from vlsn.limits import HANDLES_MAX, PRODUCER_SILENT_VLSNS
from vlsn.state.log_table import Encoded, Ended, EvictingTable, TableChanges
from vlsn.state.producer_lives import read_lives
from vlsn.state.producers import ProducersRecord

REMEMBERED = HANDLES_MAX
_LIFE = Struct("<QQQQQQ")
_FIRST, _LAST = 2, 3
_LET_GO_AT_ONCE = 1_024


class HandlePlace(NamedTuple):
    """The place of a transaction: its first VLSN, the VLSN of its COMMIT, and the term of both."""

    first: Vlsn
    last: Vlsn
    term: Term


class Handles(EvictingTable[Produced]):
    """The transactions of one log that have handles, up to the last VLSN noted."""

    def __init__(
        self,
        record: ProducersRecord | None = None,
        *,
        most: int | None = None,
        silent: int = PRODUCER_SILENT_VLSNS,
        lacks_to: int = 0,
    ) -> None:
        """Builds the table from ``record``. If ``record`` is older than the field for missing rows, the table misses at
        least some rows up to VLSN ``lacks_to``."""
        record = record or ProducersRecord()
        super().__init__(silent=silent, forgotten_to=record.forgotten_to, keyed=record.keyed)
        self._most = REMEMBERED if most is None else most
        self._rows: OrderedDict[int, Produced] = OrderedDict()
        """The rows by their handles, in log order."""
        for life in read_lives(record.lives):
            rows = life.rows
            self._rows[life.producer] = (life.producer, rows.begin, rows.firsts[-1], rows.lasts[-1], rows.terms[-1])
        self.lacks_to = max(record.lacks_to, lacks_to)
        newest = next(reversed(self._rows.values()), None)
        self.settled = newest[_LAST] if newest is not None else self.lacks_to
        self._kept_at: int = self.settled

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, handle: int) -> bool:
        """Returns whether the table has a row for ``handle``, however old the row is."""
        return handle in self._rows

    # Lookups. ``at`` is the next VLSN of the log.

    def find(self, handle: int, *, at: int) -> HandlePlace | None:
        row = self._rows.get(handle)
        if row is None or row[_LAST] + self._silent < at:
            return None
        return HandlePlace(Vlsn(row[_FIRST]), Vlsn(row[_LAST]), Term(row[4]))

    # Changes of the rows.

    def note(self, noted: Iterable[Produced]) -> None:
        """Adds commits that are after all commits noted before, in log order."""
        rows, ended, changed, most = self._rows, self._ended, self._changed, self._most
        for row in noted:
            handle = row[0]
            before = rows.pop(handle, None)
            if before is not None:  # no master logs the same handle twice
                ended.append(Ended(row[_FIRST], handle, before, self._evicted_to))
            elif len(rows) >= most:
                gone, oldest = rows.popitem(last=False)
                ended.append(Ended(row[_FIRST], gone, oldest, self._evicted_to))
                self._evicted_to = max(self._evicted_to, oldest[_LAST])
                changed[gone] = None
            rows[handle] = row
            changed[handle] = row
        if len(changed) > 2 * most:
            self.keep_all()
        self._let_go()

    def _let_go(self) -> None:
        """Forgets removed rows that no rollback can bring back."""
        ended, settled = self._ended, self.settled
        for _ in range(_LET_GO_AT_ONCE):
            if not ended or ended[0].at > settled:
                return
            ended.popleft()

    def settle(self, vlsn: Vlsn) -> None:
        """Settles everything up to ``vlsn``, which no rollback can undo."""
        self.settled = max(self.settled, vlsn)
        self._let_go()

    def check_fill(self, known: Handles, vlsn: Vlsn) -> None:
        """Compares this table with ``known``, another copy's table as of ``vlsn``. After ``lacks_to`` both tables must
        have the same rows, except for rows that ``known`` has forgotten. Raises ``ValueError`` if the tables differ."""
        self.check_exact(vlsn, "transactions")
        if max(known.settled, known._evicted_to) > vlsn or len(known) > self._most:
            raise ValueError(f"{len(known)} transactions as of VLSN {vlsn}, or some that were logged later")
        mine = {row for row in self._as_of(vlsn)[0] if row[_LAST] > self.lacks_to}
        theirs = {row for row in known._rows.values() if row[_LAST] > self.lacks_to}
        other = [row for row in mine ^ theirs if row in theirs or row[_LAST] > known._evicted_to]
        if other:
            raise ValueError(f"{len(other)} transactions have other VLSNs in the other copy than in this log")

    def fill(self, known: Handles, vlsn: Vlsn) -> None:
        """Replaces this table's rows with those of ``known``, which has passed ``check_fill``, and adds this log's rows
        after ``vlsn`` again. ``known`` must not be used afterwards."""
        behind = {row for row in chain(self._rows.values(), (each.row for each in self._ended)) if row[_LAST] > vlsn}
        known.note(sorted(behind, key=itemgetter(_LAST)))
        self._rows, self._ended, self._evicted_to = known._rows, known._ended, known._evicted_to
        self.lacks_to, self.settled = known.lacks_to, vlsn
        self.keep_all()

    def truncate(self, last: Vlsn) -> None:
        """Undoes all commits after ``last``, which must not be below the settled VLSN."""
        rows, self._evicted_to = self._as_of(last)
        self._rows = OrderedDict((row[0], row) for row in rows)
        while self._ended and self._ended[-1].at > last:
            self._ended.pop()
        if last < self._kept_at:
            self.keep_all()
        for handle in self._changed:
            self._changed[handle] = self._rows.get(handle)

    # Copies for checkpoints and restores.

    def snapshot(self, vlsn: Vlsn) -> Callable[[], ProducersRecord]:
        """Copies the table. The returned function makes the record from the copy, on any thread."""
        (rows, forgotten_to), lacks_to = self._as_of(vlsn), self.lacks_to
        return lambda: ProducersRecord(forgotten_to, b"".join([life for _, life in map(_encoded, rows)]), lacks_to)

    def checkpoint(self, vlsn: Vlsn) -> Callable[[], tuple[ProducersRecord, TableChanges]]:
        """Copies the changes since the last checkpoint, as of ``vlsn``. The caller must store them. The returned
        function makes a record without rows and the changed rows, on any thread."""
        if vlsn < max(self.settled, self._kept_at):
            self.keep_all()
        ended, forgotten_to = self._undone(vlsn)
        whole, changed = self._whole, {} if self._whole else self._changed
        rows = self._as_of(vlsn)[0] if whole else []
        later = list(self._behind(vlsn))
        count = len(self._rows) - len(later) + sum(1 for row in ended.values() if row[_LAST] <= vlsn)
        self._changed = {row[0]: row for row in later}
        for handle in ended:
            self._changed.setdefault(handle, None)
        self._kept_at, self._whole = int(vlsn), False
        record = ProducersRecord(forgotten_to, b"", self.lacks_to, keyed=True, count=count)

        def put_together() -> tuple[ProducersRecord, TableChanges]:
            then = {} if whole else {**changed, **ended}
            kept = rows + [row for row in then.values() if row is not None and row[_LAST] <= vlsn]
            there = {row[0] for row in kept}
            return record, TableChanges(
                Encoded(kept, _encoded), [handle for handle in changed if handle not in there], whole
            )

        return put_together

    def _behind(self, vlsn: int) -> Iterator[Produced]:
        for row in reversed(self._rows.values()):
            if row[_LAST] <= vlsn:
                return
            yield row

    def _as_of(self, vlsn: int) -> tuple[list[Produced], int]:
        ended, evicted_to = self._undone(vlsn)
        rows = [row for row in chain(ended.values(), self._rows.values()) if row[_LAST] <= vlsn]
        if ended:
            rows.sort(key=itemgetter(_LAST))
        return rows, evicted_to


def _encoded(row: Produced) -> tuple[int, bytes]:
    """Encodes a row in the same form as a producer's life with one submission (``producer_lives.py``)."""
    handle, sequence, first, last, term = row
    return handle, _LIFE.pack(handle, sequence, 1, first, last, term)
