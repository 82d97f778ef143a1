"""Appends the events of a group to another group: in the same order, each once, even after crashes.

    source   41 42 |43 44 45 COMMIT| 47        other group   {41 42 43 44 45, position 46}  {47, position 48}

1. The other group stores the position as ``SOURCE/NAME``. The position is set by the COMMIT of the transaction that
   contains the entries, so the block has the entries and the position, or neither.
2. Each commit names the COMMIT that set the position from which it starts. If two commits start from one position, the
   second is refused. The second may come from a worker that was replaced, or from a retry after a lost answer.
3. A transaction of the source group stays in one transaction of the other group, perhaps together with its neighbours.
4. After any doubt (a commit without an answer) the process ends. The next process reads its position from the other
   group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from repl.api import ConsumerAt, ConsumerChange
from repl.cdc.consumer import CdcConsumer, CdcContext, CdcEvent, CdcEvents, CdcPosition, CdcUnavailable
from repl.cdc.shipped.options import check_begins, check_runs_on, options_of
from repl.cdc_settings import ON_MASTER, MirrorOptions
from repl.client.batch_rows import (
    PART_BYTES_MAX,
    PART_ENTRIES_MAX,
    PIECE_BYTES,
    ROW_OVERHEAD_BYTES,
    BatchRows,
    chunk_of,
)
from repl.client.sync import SyncClient, connect_sync
from repl.tls_files import TlsFiles
from vlsn.errors import BadArgument, OutcomeUnknown, StaleTerm, TransactionGone, Unreachable, VlsnLogError
from vlsn.ids import is_name
from vlsn.limits import BODY_BYTES_MAX
from vlsn.seams import Buffer

BY: Final = "{:016x}"
"""The format of the names of commits: ``CdcContext.moved_us`` of the last order, 0 for no order."""


class Mirror(CdcConsumer):
    """Appends every event, with its key and its value, to the group that the options name."""

    def __init__(self, part_bytes_max: int = PART_BYTES_MAX, part_entries_max: int = PART_ENTRIES_MAX) -> None:
        self._limits = part_bytes_max, part_entries_max
        self._log: SyncClient[Buffer] | None = None
        self._key = ""
        self._placed: ConsumerAt | None = None
        """The last known position in the other group."""

    def start(self, context: CdcContext) -> CdcPosition:
        options = options_of(MirrorOptions, context.options)
        check_runs_on(context, "master", ON_MASTER)
        self._log = log = _connected(options)
        try:
            self._check_group(log.group_name(), options, context)
            self._key = f"{context.group}/{context.name}"
            placed = log.positions.get(self._key)
            by = BY.format(context.moved_us)
            if placed is None:
                check_begins(context, f"group {options.group or 'of ' + options.url} has no position {self._key}")
            if placed is None or (context.moved and placed.by != by):
                at = placed.at if placed is not None else 0
                placed = log.positions.set(
                    self._key, ConsumerChange(context.next, at=at, by=by, term=context.position_term)
                )
        except VlsnLogError as error:
            raise _unavailable(error) from error
        self._placed = placed
        return CdcPosition(placed.next, placed.term)

    def on_events(self, events: CdcEvents) -> bool:
        taken = list(events)
        if not taken:
            return False
        parts = list(_parts(taken, *self._limits))
        for number, part in enumerate(parts, 1):
            if number == len(parts):
                self._commit(part, events.next_vlsn, events.term)
            else:
                self._commit(part, part[-1].vlsn + 1, part[-1].term)
        return True

    def stop(self) -> None:
        if self._log is not None:
            self._log.close(flush=False)

    def _commit(self, part: Sequence[CdcEvent], next_vlsn: int, term: int) -> None:
        """Logs the events of ``part``, and the position after them, in the other group."""
        assert self._log is not None and self._placed is not None
        placed = self._placed
        change = ConsumerChange(next_vlsn, at=placed.at, by=placed.by, term=term)
        rows = BatchRows([chunk_of([event.value for event in part], [event.key for event in part])])
        try:
            appended = self._log.positions.commit(self._key, list(rows.pieces(self._piece_bytes(part))), change)
        except VlsnLogError as error:
            raise _unavailable(error) from error
        self._placed = ConsumerAt(self._key, next_vlsn, term, appended.last, by=placed.by)

    def _piece_bytes(self, part: Sequence[CdcEvent]) -> int:
        """Returns the size of a call's body. A part larger than ``PART_BYTES_MAX`` is sent in as few calls as
        possible, because each call uses some bytes of the transaction's limit."""
        return PIECE_BYTES if _size(part) <= PART_BYTES_MAX else BODY_BYTES_MAX

    def _check_group(self, found: str, options: MirrorOptions, context: CdcContext) -> None:
        if found == context.group:
            raise BadArgument(
                f"options: url: {options.url} is of group {found}, as this node is; a mirror is a group of another name"
            )
        if not is_name(found) or (options.group and found != options.group):
            raise BadArgument(f"options: group: {options.url} is of group {found}, not {options.group}")


def _connected(options: MirrorOptions) -> SyncClient[Buffer]:
    files = TlsFiles(options.ca_file, options.cert_file, options.key_file)
    file = options.token_file or None
    token = "" if file is None else None
    return connect_sync(options.url, timeout_s=options.timeout_s, tls=files, token=token, token_file=file).__enter__()


def _parts(events: Sequence[CdcEvent], bytes_max: int, entries_max: int) -> Iterator[list[CdcEvent]]:
    """Divides events into parts within these limits. A transaction is never divided, so a single transaction may
    exceed the limits."""
    part: list[CdcEvent] = []
    size = 0
    for whole in _wholes(events):
        more = _size(whole)
        if part and (size + more > bytes_max or len(part) + len(whole) > entries_max):
            yield part
            part, size = [], 0
        part += whole
        size += more
    yield part


def _size(events: Sequence[CdcEvent]) -> int:
    """Returns the bytes that ``events`` take in a transaction."""
    return sum(len(event.value) + len(event.key or b"") + ROW_OVERHEAD_BYTES for event in events)


def _wholes(events: Sequence[CdcEvent]) -> Iterator[list[CdcEvent]]:
    """Yields the events of each transaction together, and every other event alone."""
    for txn, some in groupby(events, lambda event: event.txn):
        if txn:
            yield list(some)
        else:
            yield from ([event] for event in some)


def _unavailable(error: VlsnLogError) -> Exception:
    """Returns the error to raise: ``CdcUnavailable``, or ``error`` itself if a later try would be refused as well."""
    passes = error.transient or isinstance(error, Unreachable | OutcomeUnknown | StaleTerm | TransactionGone)
    return CdcUnavailable(f"the other group: {error}") if passes else error
