"""A web application with Flask: it answers once an order is on the disks of a majority.

    VLSNLOG_URL=http://127.0.0.1:7701,http://127.0.0.1:7702 flask --app flask_app run

All threads of a process share one client, which sends their appends of the same moment in one batch.
"""

import atexit
import os
import threading
from typing import Any

from flask import Flask, Response, jsonify, request

from vlsnlog import SyncClient, Trimmed, VlsnLogError, connect_sync

app = Flask(__name__)
_opening = threading.Lock()
_opened: list[SyncClient[Any]] = []


def orders() -> SyncClient[Any]:
    """Returns this process's client, opened at its first request: after the fork, if a server forks workers."""
    with _opening:
        if not _opened:
            client: SyncClient[Any] = connect_sync(os.environ["VLSNLOG_URL"], codec="json", timeout_s=5)
            _opened.append(client.__enter__())
            atexit.register(client.close)
        return _opened[0]


@app.post("/orders")
def take() -> tuple[Response, int]:
    vlsn = orders().append(request.get_json(), key="order")
    return jsonify(vlsn=vlsn), 201


@app.get("/orders/<int:vlsn>")
def show(vlsn: int) -> tuple[Response, int]:
    for entry in orders().read(max(vlsn, 1), vlsn, consistency="linearizable"):
        if entry.key == b"order":
            return jsonify(entry.json()), 200
    return jsonify(error="no such order"), 404


@app.errorhandler(Trimmed)
def gone(error: Trimmed) -> tuple[Response, int]:
    return jsonify(error=str(error)), 410


@app.errorhandler(ValueError)
def not_json(error: ValueError) -> tuple[Response, int]:
    return jsonify(error=str(error)), 400


@app.errorhandler(VlsnLogError)
def not_done(error: VlsnLogError) -> tuple[Response, int]:
    # The client has tried until its deadline. If retry_safe, nothing was logged; else read before sending again.
    return jsonify(error=str(error), retry_safe=error.retry_safe), 503 if error.retry_safe else 504
