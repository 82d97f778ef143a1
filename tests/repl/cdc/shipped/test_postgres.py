"""Rows in a real PostgreSQL: each event once, whatever ends when; the fence, a person's orders, and what is refused."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import psycopg
import pytest
from harness.postgres import PASSWORD, NoPostgres
from harness.postgres import Postgres as Server

from repl.cdc import CdcUnavailable
from repl.cdc.shipped import postgres
from repl.cdc.shipped.postgres import Postgres
from tests.repl.cdc.shipped.feeding import Fed, Feeder, log_of
from vlsn.errors import BadArgument

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    try:
        with Server() as server:
            yield server
    except NoPostgres as error:
        pytest.skip(str(error))


@pytest.fixture
def server(running: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Returns a server with no tables."""
    monkeypatch.setenv("ROWS_PASSWORD", PASSWORD)
    with running.connect() as connection:
        connection.execute("DROP TABLE IF EXISTS vlsnlog_events, vlsnlog_positions")
    return running


class Worker(Postgres):
    """One whose connection is closed when the test ends: there is no process here that does so by its end."""

    made: ClassVar[list[Worker]] = []

    def __init__(self) -> None:
        super().__init__()
        self.made.append(self)


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    for worker in Worker.made:
        worker.stop()
    Worker.made.clear()


def feeder(server: Server, seed: int, count: int = 120, *, begins: bool = True, **more: Any) -> Feeder:
    options = {"dsn": server.dsn, "password_env": "ROWS_PASSWORD", "timeout_s": 5.0, **more}
    context: dict[str, Any] = {"run_on": "master", "begins": begins}
    return Feeder(log_of(Random(seed), count), options, Random(seed), **context)


def rows(server: Server) -> list[tuple[Any, ...]]:
    with server.connect() as connection:
        return connection.execute(
            "SELECT vlsn, term, (extract(epoch FROM time) * 1000000)::bigint, txn, key, value FROM vlsnlog_events"
            " ORDER BY vlsn"
        ).fetchall()


def wanted(fed: Feeder) -> list[tuple[Any, ...]]:
    return [(e.vlsn, e.term, e.time, e.txn or None, e.key, e.value) for e in fed.events]


class Broken(Worker):
    """One whose process ends at a moment of a transaction, or whose COMMIT loses its answer."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self._left = rng.randrange(1, 12)
        self._kind = rng.choice(["before", "rows", "position", "after"])

    def on_events(self, events: Any) -> bool:
        self._left -= 1
        took = super().on_events(events)
        if not self._left and self._kind == "after":  # stored, and nobody was told
            raise ConnectionError("its process has ended")
        return took

    def _copy(self, cursor: Any, events: Any) -> None:
        self._end("before")
        super()._copy(cursor, events)
        self._end("rows")

    def _store(self, next_vlsn: int, term: int) -> None:
        super()._store(next_vlsn, term)
        self._end("position")

    def _end(self, kind: str) -> None:
        if not self._left and self._kind == kind:
            assert self._connection is not None
            self._connection.close()  # the server sees the end of a process
            raise ConnectionError("its process has ended")


@pytest.mark.parametrize("seed", range(3))
def test_each_event_is_one_row_wherever_a_process_ends(seed: int, server: Server) -> None:
    rng = Random(seed)
    fed = feeder(server, seed)
    for _ in range(12):
        try:
            fed.life(lambda: Broken(rng))
        except (ConnectionError, CdcUnavailable):
            continue
        break
    fed.life(Worker)
    assert rows(server) == wanted(fed)


def test_a_killed_server_is_waited_for_and_has_each_row_once(server: Server) -> None:
    fed = feeder(server, 1)
    fed.life(Worker, upto=60)
    worker = Worker()
    worker.start(fed.context())
    server.kill()
    with pytest.raises(CdcUnavailable, match="the database"):
        worker.on_events(Fed(fed.log[60:80], 61, [1] * 20))
    with pytest.raises(CdcUnavailable, match="the database"):
        fed.life(Worker)
    server.start()
    fed.life(Worker)
    assert rows(server) == wanted(fed)


def test_a_server_that_hangs_is_given_up_in_time(server: Server) -> None:
    fed = feeder(server, 1, timeout_s=1.0)
    worker = Worker()
    worker.start(fed.context())
    server.send(signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(CdcUnavailable):
            worker.on_events(Fed(fed.log[:20], 1, [1] * 20))
        assert time.monotonic() - began < 20.0
    finally:
        server.send(signal.SIGCONT)
    worker.stop()
    fed.life(Worker)
    assert rows(server) == wanted(fed)


def test_a_worker_that_was_replaced_stores_nothing_and_one_of_an_older_term_does_not_begin(server: Server) -> None:
    fed = feeder(server, 2)
    old, new = Worker(), Worker()
    old.start(fed.context())
    assert old.on_events(Fed(fed.log[:10], 1, [1] * 10))
    new.start(fed.context())
    with pytest.raises(CdcUnavailable, match="has taken over; nothing was stored"):
        old.on_events(Fed(fed.log[10:20], 11, [1] * 10))
    before = rows(server)
    assert new.on_events(Fed(fed.log[10:20], 11, [1] * 10)) and rows(server)[: len(before)] == before
    older = fed.context()
    object.__setattr__(older, "term", older.term - 1)
    with pytest.raises(CdcUnavailable, match="a worker of term"):
        Worker().start(older)
    old.stop()
    new.stop()
    fed.life(Worker)
    assert rows(server) == wanted(fed)


def test_a_start_waits_for_what_a_dying_worker_has_under_way(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start sees the rows of a COMMIT without an answer, or they are not there: it does not read too early."""
    fed = feeder(server, 3)
    old = Worker()
    old.start(fed.context())
    assert old.on_events(Fed(fed.log[:10], 1, [1] * 10))
    with old._transaction(30.0):  # its process has ended, and the server has not heard of it
        assert old._locked() is not None
        monkeypatch.setattr(postgres, "START_S", 1.0)
        with pytest.raises(CdcUnavailable, match=r"timeout|closed|terminating"):
            Worker().start(fed.context())
    old.stop()


def test_an_order_of_a_person_is_obeyed_once_and_makes_no_row_twice(server: Server) -> None:
    fed = feeder(server, 4, begins=False)
    fed.moved_us = 7
    fed.life(Worker, upto=80)
    assert [row[0] for row in rows(server)] == [event.vlsn for event in fed.events if event.vlsn <= 80]
    fed.position, fed.moved_us = 41, 7  # the node did not hear what was stored; it tells the same order again
    fed.held = 1
    fed.life(Worker)
    assert rows(server) == wanted(fed)
    fed.position = fed.held = 21
    fed.moved_us = 8
    fed.life(Worker)
    assert rows(server) == wanted(fed), "what is there from VLSN 21 on is replaced"


def test_without_its_position_one_that_has_committed_does_not_begin(server: Server) -> None:
    fed = feeder(server, 5)
    fed.life(Worker, upto=60)
    with server.connect() as connection:
        connection.execute("DROP TABLE vlsnlog_positions")
    fed._context["begins"] = False
    with pytest.raises(BadArgument, match="has no position of g/orders, but this consumer has come to"):
        fed.life(Worker)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"create": False}, 'relation "vlsnlog_events" does not exist'),
        ({"table": "pg_class"}, 'column "vlsn" does not exist'),
        ({"password_file": "/nowhere/at/all", "password_env": ""}, "No such file"),
        ({"dsn": "host=127.0.0.1 colour=blue"}, "colour"),
    ],
)
def test_what_is_wrong_parks_at_once(options: dict[str, Any], said: str, server: Server) -> None:
    with pytest.raises(BadArgument, match=said):
        feeder(server, 6, **options).life(Worker)


def test_a_wrong_password_is_said_and_shown_nowhere(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("not-the-password\n")
    with pytest.raises(CdcUnavailable, match="password authentication failed") as raised:
        feeder(server, 6, password_file=str(path), password_env="").life(Worker)
    assert "not-the-password" not in str(raised.value)


def test_rows_that_others_have_put_there_are_a_failure(server: Server) -> None:
    fed = feeder(server, 7)
    fed.life(Worker, upto=20)
    with server.connect() as connection:
        connection.execute("DELETE FROM vlsnlog_positions")
    with pytest.raises(psycopg.errors.UniqueViolation):
        Feeder(fed.log, fed._options, Random(7), run_on="master", begins=True).life(Worker)
