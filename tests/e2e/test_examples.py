"""The examples of ``docs/applications.md``, run as its reader runs them, on a group of real nodes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from repl import connect_sync
from tests.e2e.group import Group

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
WAIT_S = 60


@contextmanager
def running(*command: str, urls: str = "", by: signal.Signals = signal.SIGTERM, status: int = 0) -> Iterator[None]:
    """Runs the example as a process. At the signal it must end by itself with ``status``, unless that is SIGKILL."""
    environment = {**os.environ, "VLSNLOG_URL": urls, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, *command], cwd=EXAMPLES, env=environment)
    try:
        yield
        process.send_signal(by)
        assert process.wait(WAIT_S) == (-signal.SIGKILL if by is signal.SIGKILL else status)
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def asked(port: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    connection = HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def totals(path: Path) -> dict[str, int]:
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
            found = dict(database.execute("select customer, cents from totals").fetchall())
    except sqlite3.OperationalError:
        return {}  # not made yet
    database.close()
    return found


def test_a_page_shows_each_example_as_it_is_run() -> None:
    page = "".join((ROOT / "docs" / name).read_text() for name in ("applications.md", "export.md"))
    shown = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    examples = sorted(EXAMPLES.glob("*.py"))
    assert len(examples) >= 4
    assert [path.name for path in examples if path.read_text() not in shown] == []


def test_the_worker_counts_each_order_once_however_it_ends(group: Group, tmp_path: Path) -> None:
    urls, database = ",".join(group.urls.values()), tmp_path / "totals.db"
    customer = f"worker-{os.getpid()}"

    def order(cents: Any) -> None:
        with connect_sync(urls, codec="json") as log:
            log.append({"customer": customer, "cents": cents}, key="order")

    def counted(cents: int) -> None:
        group.until(lambda: totals(database).get(customer) == cents, f"{cents} cents are counted")

    order(100)
    with running("worker.py", urls, str(database)):
        counted(100)
        order("no number")  # set aside
        order(20)
        counted(120)
    for cents in (1, 2, 3):
        order(cents)
    with running("worker.py", urls, str(database), by=signal.SIGKILL):
        counted(126)
        order(4)  # and killed in the middle of whatever it does
    with running("worker.py", urls, str(database)):
        order(5)
        counted(135)
    with sqlite3.connect(database) as looked:
        assert looked.execute("select count(*) from refused where reason like '%no number%'").fetchone() == (1,)
    looked.close()


def test_the_billing_worker_makes_one_invoice_for_each_order(group: Group) -> None:
    urls, customer = ",".join(group.urls.values()), f"billing-{os.getpid()}"

    def order(count: int) -> None:
        with connect_sync(urls, codec="json") as log:
            orders.extend(log.append({"customer": customer, "cents": cents}, key="order") for cents in range(count))
            log.append("no order", key="order")

    def invoices() -> list[int]:
        with connect_sync(urls) as log:
            found = [entry.json() for entry in log.read(key=b"invoice")]
        return [each["order"] for each in found if each["customer"] == customer]

    def reached(count: int) -> bool:
        return len(invoices()) >= count

    orders: list[int] = []
    order(20)
    for _ in range(3):
        some = len(invoices()) + 1
        with running("billing.py", urls, by=signal.SIGKILL):
            order(20)  # while it runs: else all may have their invoices, and there is none to wait for
            group.until(partial(reached, some), "an invoice is there")
    with running("billing.py", urls):
        order(1)  # whose invoice only a worker that runs can make, and that knows what SIGTERM means
        group.until(partial(reached, len(orders)), "each order has its invoice")
    assert invoices() == orders


def test_the_flask_application_takes_and_shows_orders(group: Group) -> None:
    port = free_port()
    command = ("-m", "flask", "--app", "flask_app", "run", "--port", str(port))
    by = signal.SIGINT  # Flask's own server knows no SIGTERM
    with running(*command, urls=",".join(group.urls.values()), by=by):
        group.until(lambda: answers(port), "Flask listens")
        status, told = asked(port, "POST", "/orders", {"customer": "a", "cents": 5})
        assert status == 201
        assert asked(port, "GET", f"/orders/{told['vlsn']}") == (200, {"customer": "a", "cents": 5})
        assert asked(port, "GET", "/orders/1") == (404, {"error": "no such order"})
        assert asked(port, "GET", "/orders/999999999")[0] == 404
        assert asked(port, "POST", "/orders", float("nan"))[0] == 400
    with running(*command, urls="http://127.0.0.1:9", by=by):
        group.until(lambda: answers(port), "Flask listens")
        status, told = asked(port, "POST", "/orders", {})
        assert (status, told["retry_safe"]) == (503, True)


def test_the_django_application_takes_and_shows_orders(group: Group) -> None:
    port = free_port()
    command = ("django_app.py", "runserver", "--noreload", str(port))
    by = signal.SIGINT  # Django's own server ends cleanly by it
    with running(*command, urls=",".join(group.urls.values()), by=by):
        group.until(lambda: answers(port), "Django listens")
        status, told = asked(port, "POST", "/orders", {"customer": "d", "cents": 5})
        assert status == 201
        assert asked(port, "GET", f"/orders/{told['vlsn']}") == (200, {"customer": "d", "cents": 5})
        assert asked(port, "GET", "/orders/1") == (404, {"error": "no such order"})
        assert asked(port, "POST", "/orders", float("nan"))[0] == 400
    with running(*command, urls="http://127.0.0.1:9", by=by):
        group.until(lambda: answers(port), "Django listens")
        status, told = asked(port, "POST", "/orders", {})
        assert (status, told["retry_safe"]) == (503, True)


def test_the_fastapi_application_takes_and_streams_orders(group: Group) -> None:
    port = free_port()
    command = ("-m", "uvicorn", "fastapi_app:app", "--port", str(port), "--timeout-graceful-shutdown", "2")
    ended = -signal.SIGTERM  # uvicorn sends itself the signal again, after it has closed the application
    with running(*command, urls=",".join(group.urls.values()), status=ended):
        group.until(lambda: answers(port), "uvicorn listens")
        assert asked(port, "POST", "/orders", [1])[0] == 422
        vlsns = []
        for cents in (1, 2):
            status, told = asked(port, "POST", "/orders", {"customer": "f", "cents": cents})
            assert status == 201
            vlsns.append(told["vlsn"])
        stream = HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        stream.request("GET", "/orders", headers={"Last-Event-ID": str(vlsns[0])})
        events = stream.getresponse()
        assert events.readline() == b"id: %d\n" % vlsns[1]
        assert json.loads(events.readline().removeprefix(b"data: ")) == {"customer": "f", "cents": 2}
        events.close()
        stream.close()
    with running(*command, urls="http://127.0.0.1:9", status=ended):
        group.until(lambda: answers(port), "uvicorn listens")
        status, told = asked(port, "POST", "/orders", {})
        assert (status, told["retry_safe"]) == (503, True)


def test_the_aiohttp_application_takes_and_streams_orders(group: Group) -> None:
    port = free_port()
    with running("aiohttp_app.py", str(port), urls=",".join(group.urls.values())):
        group.until(lambda: answers(port), "aiohttp listens")
        assert asked(port, "POST", "/orders", float("nan"))[0] == 400
        vlsns = []
        for cents in (1, 2):
            status, told = asked(port, "POST", "/orders", {"customer": "b", "cents": cents})
            assert status == 201
            vlsns.append(told["vlsn"])
        stream = HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        stream.request("GET", "/orders", headers={"Last-Event-ID": str(vlsns[0])})
        events = stream.getresponse()
        assert events.readline() == b"id: %d\n" % vlsns[1]
        assert json.loads(events.readline().removeprefix(b"data: ")) == {"customer": "b", "cents": 2}
        events.readline()
        _, told = asked(port, "POST", "/orders", {"customer": "b", "cents": 3})
        assert events.readline() == b"id: %d\n" % told["vlsn"]
        events.close()
        stream.close()
    with running("aiohttp_app.py", str(port), urls="http://127.0.0.1:9"):
        group.until(lambda: answers(port), "aiohttp listens")
        status, told = asked(port, "POST", "/orders", {})
        assert (status, told["retry_safe"]) == (503, True)
