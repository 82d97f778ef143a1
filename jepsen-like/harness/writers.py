"""Writers under load, through the client, and a few that are bound to be refused.

A writer awaits each append before its next.  Its outcome is *refused* only if the error says that nothing
was logged (``retry_safe``); anything else that is no acknowledgement is *unknown*.
"""

from __future__ import annotations

import asyncio
import http.client
from urllib.parse import urlsplit

from harness.history import History, value_of
from repl.client.connect import Client
from vlsn.errors import VlsnLogError

APPEND_TIMEOUT_S = 5.0
PAUSE_S = 0.05


async def write(client: Client, history: History, stop: asyncio.Event) -> None:
    """Appends until ``stop``, or until one append does not succeed."""
    while not stop.is_set():
        number = history.sent()
        try:
            vlsn = await client.append(value_of(number).encode())
        except VlsnLogError as error:
            (history.refused if error.retry_safe else history.unknown)(number)
            return
        except asyncio.CancelledError:
            history.unknown(number)
            raise
        history.ok(number, vlsn)


async def write_in_vain(url: str, history: History, stop: asyncio.Event) -> None:
    """Sends appends that are refused: an unknown ack policy, and a content type that nobody reads."""
    turn = 0
    while not stop.is_set():
        turn += 1
        query, content_type = (
            ("?acks=most", "application/octet-stream") if turn % 2 else ("", "application/x-unheard-of")
        )
        await asyncio.to_thread(post_once, url + "/v1/entries" + query, history, content_type=content_type)
        try:
            await asyncio.wait_for(stop.wait(), PAUSE_S)
        except TimeoutError:
            continue


def post_once(url: str, history: History, *, content_type: str = "application/octet-stream") -> None:
    """Sends one append by a plain POST that follows no redirect. One that is answered by 307, or by any error but 500
    and 504, is refused."""
    parts = urlsplit(url)
    number = history.sent()
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=APPEND_TIMEOUT_S)
    try:
        connection.connect()
    except OSError:
        history.refused(number)
        connection.close()
        return
    try:
        target = parts.path + ("?" + parts.query if parts.query else "")
        connection.request("POST", target, body=value_of(number).encode(), headers={"Content-Type": content_type})
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException):
        history.unknown(number)
    else:
        _note(history, number, answer.status, body)
    finally:
        connection.close()


def _note(history: History, number: int, status: int, body: bytes) -> None:
    if status == 200:
        history.ok(number, int(body.split(b'"first":')[1].split(b",")[0]))
    elif status in (500, 504):
        history.unknown(number)
    else:
        history.refused(number)
