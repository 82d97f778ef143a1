"""Writes events as rows of a PostgreSQL table, each once: the transaction that inserts the rows also stores the
position.

    BEGIN
    SELECT next, worker FROM positions WHERE … FOR UPDATE      the fence: does this worker still own the position?
    COPY events FROM STDIN                                     the rows
    UPDATE positions SET next = …                              the position after the rows
    COMMIT                                                     commit point: both, or neither

1. At its start a worker locks the row with the position, and writes its own id into the row. If another worker's
   transaction holds the lock, the worker waits. Once the row has another worker's id, the earlier worker can store
   nothing more.
2. A worker whose log has an older term than the row is refused: its master was replaced and has not noticed.
3. After any doubt (a COMMIT without an answer) the process ends. The next process reads the position under the lock.
4. A person's order to move deletes the rows from its VLSN on, in the same transaction that sets the position. The
   deleted rows are written again afterwards.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from repl.cdc.consumer import CdcConsumer, CdcContext, CdcEvent, CdcEvents, CdcPosition, CdcUnavailable
from repl.cdc.shipped.options import check_begins, check_runs_on, options_of
from repl.cdc.shipped.secret import secret_of
from repl.cdc_settings import ON_MASTER, PostgresOptions
from vlsn.errors import BadArgument

COLUMNS: Final = ("vlsn", "term", "time", "txn", "key", "value")
TYPES: Final = ("int8", "int8", "timestamptz", "int8", "bytea", "bytea")
START_S: Final = 15.0
"""The time limit of a start in seconds, without the time for connecting."""
IDLE_S: Final = 60.0
"""After this many seconds the server ends the transaction of a silent client, and releases its lock."""
KEEPALIVE: Final = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
TIME_US_MAX: Final = 253_402_300_799_999_999
"""The last microsecond of year 9999."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_EVENTS: Final = """CREATE TABLE IF NOT EXISTS {table} (
    vlsn bigint PRIMARY KEY, term bigint NOT NULL, time timestamptz NOT NULL, txn bigint,
    key bytea, value bytea NOT NULL)"""
_POSITIONS: Final = """CREATE TABLE IF NOT EXISTS {positions} (
    log_group text, consumer text, next bigint NOT NULL, term bigint NOT NULL,
    worker text NOT NULL, worker_term bigint NOT NULL, ordered numeric NOT NULL, stored timestamptz NOT NULL,
    PRIMARY KEY (log_group, consumer))"""
_LIMITS: Final = """SELECT set_config('statement_timeout', %(ms)s, true), set_config('lock_timeout', %(ms)s, true),
    set_config('idle_in_transaction_session_timeout', %(idle_ms)s, true),
    CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END"""


class _Row(NamedTuple):
    """A consumer's position in the database."""

    next: int
    term: int
    worker: str
    worker_term: int
    ordered: int


class Postgres(CdcConsumer):
    """Copies events into a table with the columns vlsn, term, time, txn, key, value."""

    def __init__(self) -> None:
        self._connection: psycopg.Connection[Any] | None = None
        self._worker = uuid4().hex
        self._next = 0

    def start(self, context: CdcContext) -> CdcPosition:
        self._options = options = options_of(PostgresOptions, context.options)
        check_runs_on(context, "master", ON_MASTER)
        self._name = {"log_group": context.group, "consumer": context.name}
        self._table = sql.Identifier(*options.table.split("."))
        self._positions = sql.Identifier(*options.positions_table.split("."))
        arguments = _arguments(options, context)
        with _judged():
            self._connection = psycopg.connect(**arguments)
            try:
                with self._transaction(START_S):
                    self._make_tables()
                with self._transaction(START_S):
                    row = self._taken_over(context)
                self._warn()
            except BaseException:
                self.stop()
                raise
        self._next = row.next
        return CdcPosition(row.next, row.term)

    def on_events(self, events: CdcEvents) -> bool:
        taken = list(events)
        if not taken:
            return False
        with _judged(), self._transaction(self._options.timeout_s) as cursor:
            self._check_fence(self._locked())
            self._copy(cursor, taken)
            self._store(events.next_vlsn, events.term)
        self._next = events.next_vlsn
        return True

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.close()

    # The position.

    def _taken_over(self, context: CdcContext) -> _Row:
        """Writes this worker's id into the position's row, and returns the row. Raises ``CdcUnavailable``."""
        row = self._locked()
        if row is None:
            check_begins(context, f"{self._options.positions_table} has no position of {context.group}/{context.name}")
            self._run(
                "INSERT INTO {positions} VALUES (%(log_group)s, %(consumer)s, %(next)s, %(term)s, '', 0, 0, now())",
                next=context.next,
                term=context.position_term,
            )
            row = _Row(context.next, context.position_term, "", 0, 0)
        if row.worker_term > context.term:
            raise CdcUnavailable(
                f"a worker of term {row.worker_term} has it; this node's log is at term {context.term}"
            )
        if context.moved and row.ordered != context.moved_us:
            self._run("DELETE FROM {table} WHERE vlsn >= %(next)s", next=context.next)
            row = row._replace(next=context.next, term=context.position_term, ordered=context.moved_us)
        self._run(
            "UPDATE {positions} SET next = %(next)s, term = %(term)s, ordered = %(ordered)s, worker = %(worker)s,"
            " worker_term = %(worker_term)s, stored = now()"
            " WHERE log_group = %(log_group)s AND consumer = %(consumer)s",
            **{**row._asdict(), "worker": self._worker, "worker_term": context.term},
        )
        return row

    def _locked(self) -> _Row | None:
        """Reads the position, and locks its row until the transaction ends."""
        found = self._run(
            "SELECT next, term, worker, worker_term, ordered::text FROM {positions}"
            " WHERE log_group = %(log_group)s AND consumer = %(consumer)s FOR UPDATE"
        ).fetchone()
        if found is None:
            return None
        next_vlsn, term, worker, worker_term, ordered = found
        return _Row(next_vlsn, term, worker, worker_term, int(ordered))

    def _check_fence(self, row: _Row | None) -> None:
        """Raises ``CdcUnavailable`` if another worker has taken the position over. The next start of the consumer
        reports the reason."""
        if row is None or row.worker != self._worker or row.next != self._next:
            has = f"a worker of term {row.worker_term} has taken over" if row is not None else "its position is gone"
            raise CdcUnavailable(f"{has}; nothing was stored")

    def _store(self, next_vlsn: int, term: int) -> None:
        self._run(
            "UPDATE {positions} SET next = %(next)s, term = %(term)s, stored = now()"
            " WHERE log_group = %(log_group)s AND consumer = %(consumer)s",
            next=next_vlsn,
            term=term,
        )

    # The rows.

    def _copy(self, cursor: psycopg.Cursor[Any], events: Sequence[CdcEvent]) -> None:
        names = sql.SQL(", ").join(map(sql.Identifier, COLUMNS))
        command = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(self._table, names)
        with cursor.copy(command) as copy:
            copy.set_types(TYPES)
            for event in events:
                time = EPOCH + timedelta(microseconds=min(event.time, TIME_US_MAX))
                copy.write_row((event.vlsn, event.term, time, event.txn or None, event.key, event.value))

    def _make_tables(self) -> None:
        """Creates missing tables, and checks the columns. Raises ``BadArgument``."""
        try:
            if self._options.create:
                self._run(_EVENTS)
                self._run(_POSITIONS)
            self._run("SELECT vlsn, term, time, txn, key, value FROM {table} LIMIT 0")
            self._run("SELECT next, term, worker, worker_term, ordered, stored FROM {positions} LIMIT 0")
        # a table or column is missing, or this user has no right to it
        except psycopg.errors.ProgrammingError as error:
            raise BadArgument(f"options: table, positions_table: {error.diag.message_primary or error}") from None

    def _warn(self) -> None:
        """Prints a warning to the node's log if the server's own settings give up durability."""
        assert self._connection is not None
        if self._connection.execute("SHOW fsync").fetchone() == ("off",):
            print("postgres: the server runs with fsync = off: what it stores may be lost", file=sys.stderr)

    # The connection.

    @contextmanager
    def _transaction(self, limit_s: float) -> Iterator[psycopg.Cursor[Any]]:
        """Runs the body of the ``with`` statement as one transaction. After ``limit_s`` seconds the connection is
        closed, so that no call hangs."""
        assert self._connection is not None
        with _cut_after(self._connection, limit_s), self._connection.transaction():
            cursor = self._connection.cursor()
            limits = {"ms": str(int(limit_s * 1000)), "idle_ms": str(int(IDLE_S * 1000))}
            cursor.execute(_LIMITS, limits)
            yield cursor

    def _run(self, command: str, **values: object) -> psycopg.Cursor[Any]:
        assert self._connection is not None
        text = sql.SQL(command).format(table=self._table, positions=self._positions)
        return self._connection.execute(text, {**self._name, **values})


@contextmanager
def _cut_after(connection: psycopg.Connection[Any], limit_s: float) -> Iterator[None]:
    """Closes the connection after ``limit_s`` seconds, because a call to a hanging or missing server never ends by
    itself."""
    end = os.dup(connection.fileno())

    def cut() -> None:
        with suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)

    with socket.socket(fileno=end) as connected:
        timer = threading.Timer(limit_s, cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


@contextmanager
def _judged() -> Iterator[None]:
    """Turns temporary errors into ``CdcUnavailable``: the server is down, is starting, is full, or waits for a lock."""
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.ReadOnlySqlTransaction) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise CdcUnavailable(f"the database: {said}") from None


def _arguments(options: PostgresOptions, context: CdcContext) -> dict[str, Any]:
    """Returns the arguments of the connection. Raises ``BadArgument``."""
    try:
        given = conninfo_to_dict(options.dsn)
    except psycopg.ProgrammingError as error:
        raise BadArgument(f"options: dsn: {' '.join(str(error).split())}") from None
    arguments: dict[str, Any] = {
        "application_name": f"vlsnlog {context.name}",
        **KEEPALIVE,
        **given,
        "connect_timeout": int(options.connect_timeout_s),
        "client_encoding": "utf8",
        "autocommit": True,
        "prepare_threshold": None,
    }
    if options.password_file or options.password_env:
        found = secret_of("password", options.password_file, options.password_env)
        try:
            arguments["password"] = found.decode()
        except UnicodeDecodeError:
            raise BadArgument("options: password: is no UTF-8") from None
    return arguments
