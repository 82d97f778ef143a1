"""The webhook against servers that fail, hang, answer garbage and close early; retries and refusals."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from base64 import b64decode
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from aiohttp import web

from repl.cdc import CdcUnavailable
from repl.cdc.shipped.webhook import AGAIN, Webhook, WebhookRefused
from tests.repl.cdc.shipped.feeding import Feeder, log_of
from tests.repl.cdc.shipped.receiver import Receiver
from vlsn.errors import BadArgument
from vlsn.format.block import Entry
from vlsn.ids import Term, Vlsn

SECRET = b"0123456789abcdef"
STANDARD = b"whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    return path


def live(feeder: Feeder, **more: Any) -> None:
    """Lives one life; its errors are raised, its connections closed."""
    consumer = Webhook(**{"try_s": 1.0, **more})
    try:
        feeder.life(lambda: consumer)
    except BaseException:
        consumer.stop()
        raise


def options(url: str, secret: Path, **more: Any) -> dict[str, Any]:
    return {"url": url, "secret_file": str(secret), "plain_http": True, "timeout_s": 20.0, **more}


def unkind(rng: Random) -> Callable[[web.Request], Any]:
    """Makes a server that does everything wrong now and then, also after it has taken what it was sent."""

    async def answer(request: web.Request) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        match rng.randrange(10):
            case 0:
                return web.Response(status=rng.choice([408, 425, 429, 500, 502, 503, 599]))
            case 1:
                await asyncio.sleep(1.0)  # past its timeout; taken all the same
            case 2:
                transport.abort()
            case 3:
                transport.write(b"no HTTP at all\r\n\r\n")
                transport.close()
            case 4:
                transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ntoo little")
                transport.close()
            case 5:
                transport.write(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000)
                transport.close()
            case 6:
                return web.Response(status=200, body=bytes(200_000))
        return web.Response(status=rng.choice([200, 202, 204]))

    return answer


@pytest.mark.parametrize(
    ("seed", "lanes"),
    [
        pytest.param(1, 1, marks=pytest.mark.long),
        (2, 1),
        pytest.param(3, 4, marks=pytest.mark.long),
        pytest.param(4, 32, marks=pytest.mark.long),
    ],
)
def test_each_event_is_taken_in_the_order_of_its_key_by_a_server_that_fails(
    seed: int, lanes: int, secret: Path
) -> None:
    rng = Random(seed)
    with Receiver(SECRET, unkind(rng)) as receiver:
        feeder = Feeder(
            log_of(rng, 150), options(receiver.url, secret, lanes=lanes, batch_events=7, timeout_s=0.3), rng
        )
        for _ in range(200):
            try:
                live(feeder)
            except CdcUnavailable:
                continue
            break
        else:
            raise AssertionError("it does not get through")
        asyncio.run_coroutine_threadsafe(asyncio.sleep(1.2), receiver._loop).result(10)  # those that hang are noted
    assert receiver.wrong == []
    wanted = {event.vlsn: event for event in feeder.events}
    assert {event["vlsn"] for event in receiver.events} == wanted.keys()
    by_key: dict[bytes | None, list[int]] = {}
    for vlsn in dict.fromkeys(event["vlsn"] for event in receiver.events):
        by_key.setdefault(wanted[vlsn].key if lanes > 1 else None, []).append(vlsn)
    assert all(vlsns == sorted(vlsns) for vlsns in by_key.values()), "first times are in order"


def test_a_kind_server_is_sent_each_event_once_and_told_who_sends(secret: Path) -> None:
    rng = Random(5)
    with Receiver(SECRET) as receiver:
        feeder = Feeder(log_of(rng, 300), options(receiver.url, secret, batch_events=50), rng)
        live(feeder)
    assert [event["vlsn"] for event in receiver.events] == [event.vlsn for event in feeder.events]
    head = receiver.headers[0]
    assert (head["Vlsnlog-Group"], head["Vlsnlog-Consumer"], head["Content-Type"]) == (
        "g",
        "orders",
        "application/x-ndjson",
    )
    assert receiver.wrong == [] and max(map(len, receiver.taken)) <= 50


def test_a_batch_ends_with_the_event_that_fills_it(secret: Path) -> None:
    rng = Random(6)
    with Receiver(SECRET) as receiver:
        feeder = Feeder(log_of(rng, 100, value_max=900), options(receiver.url, secret, batch_bytes=1024), rng)
        live(feeder)
    for events in receiver.taken:
        assert sum(len(event.value) for event in feeder.events if event.vlsn in _vlsns(events[:-1])) < 1024


def test_an_event_of_the_largest_size_goes_through(secret: Path) -> None:
    largest = Entry(Vlsn(1), Term(1), 1, 0, 0, None, bytes(range(256)) * 4096)
    with Receiver(SECRET) as receiver:
        live(Feeder([largest], options(receiver.url, secret), Random(1)))
        assert b64decode(receiver.events[0]["value_b64"]) == largest.value
        assert "Transfer-Encoding" not in receiver.headers[0]


def test_a_request_by_standard_webhooks_is_one_json_object_that_its_library_verifies(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(STANDARD + b"\n")
    rng = Random(8)
    events = [
        Entry(Vlsn(1), Term(2), 1_795_000_000_000_100, 0, 0, b"k", b"a\nb"),
        Entry(Vlsn(2), Term(2), 1_795_000_000_000_200, 0, 0, None, bytes(range(256))),
        Entry(Vlsn(3), Term(2), 1_795_000_000_000_300, 0, 0, None, b""),
    ]
    with Receiver(STANDARD) as receiver:
        live(Feeder(events, options(receiver.url, path, format="standard", batch_events=2), rng))
        assert receiver.wrong == [] and [each["vlsn"] for each in receiver.events] == [1, 2, 3]
        told = msgspec.json.decode(receiver.bodies[0])
        assert told.keys() == {"type", "timestamp", "data"} and told["type"] == "vlsnlog.entries"
        assert told["timestamp"] == "2026-11-18T11:06:40.000200Z"
        assert (told["data"]["group"], told["data"]["consumer"]) == ("g", "orders")
        assert told["data"]["entries"][0]["value"] == "a\nb"
        assert receiver.headers[0]["Content-Type"] == "application/json"


def test_a_request_keeps_its_id_in_every_try_and_shares_it_with_no_other(secret: Path) -> None:
    rng = Random(9)
    refused: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        if request.headers["webhook-id"] not in refused:
            refused.append(request.headers["webhook-id"])
            return web.Response(status=503)
        return web.Response(status=204)

    with Receiver(SECRET, answer) as receiver:
        live(Feeder(log_of(rng, 30), options(receiver.url, secret, batch_events=10, lanes=2), rng), try_s=10.0)
    ids = [head["webhook-id"] for head in receiver.headers]
    assert len(set(ids)) == len(receiver.taken) == len(refused) and len(ids) == 2 * len(refused) > 3
    assert receiver.wrong == []


def test_a_secret_that_is_no_base64_after_its_prefix_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"whsec_not base64 at all".replace(b" ", b"-") + b"\n")
    with pytest.raises(BadArgument, match="no base64"):
        live(Feeder(log_of(Random(1), 1), options("http://localhost:1/", path), Random(1)))


def _vlsns(events: list[dict[str, Any]]) -> set[int]:
    return {event["vlsn"] for event in events}


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308, 400, 401, 403, 404, 410, 413, 422, 451])
def test_what_says_never_is_a_failure_and_no_redirect_is_followed(status: int, secret: Path) -> None:
    with Receiver(SECRET) as elsewhere:

        async def refuse(request: web.Request) -> web.Response:
            return web.Response(status=status, text="no\x1b[31m\nthanks", headers={"Location": elsewhere.url})

        with Receiver(SECRET, refuse) as receiver:
            feeder = Feeder(log_of(Random(1), 5), options(receiver.url + "?token=hidden", secret), Random(1))
            with pytest.raises(WebhookRefused, match=f"answered {status}") as raised:
                live(feeder)
            assert receiver.requests == 1
        assert elsewhere.requests == 0
    assert "hidden" not in str(raised.value) and "\x1b" not in str(raised.value)


@pytest.mark.parametrize(
    ("said", "after_s"),
    [
        *[("7", 7.0), ("0", 0.0), ("9" * 30, 60.0), ("soon", 0.0), ("-5", 0.0), ("Wed, 99 Zzz", 0.0)],
        (formatdate(1_795_000_020, usegmt=True), 20.0),
        (formatdate(1_000, usegmt=True), 0.0),
    ],
)
def test_retry_after_is_obeyed_up_to_a_limit(said: str, after_s: float, secret: Path) -> None:
    async def later(request: web.Request) -> web.Response:
        return web.Response(status=429, headers={"Retry-After": said})

    with Receiver(SECRET, later) as receiver:
        receiver._is_genuine = lambda *given: True  # the clock here is another one
        feeder = Feeder(log_of(Random(1), 5), options(receiver.url, secret, retry_after_max_s=60.0), Random(1))
        with pytest.raises(CdcUnavailable, match="answered 429") as raised:
            live(feeder, wall_s=lambda: 1_795_000_000.0)
        assert raised.value.after_s == after_s
        assert (receiver.requests == 1) == (after_s > 0), "it is not asked again before"


def test_the_statuses_that_are_asked_again() -> None:
    assert {408, 425, 429, 500, 503, 599} <= AGAIN and not AGAIN & {200, 301, 400, 404, 410, 413}


def test_nobody_there_is_waited_for(secret: Path) -> None:
    with Receiver(SECRET) as receiver:
        url = receiver.url
    with pytest.raises(CdcUnavailable, match="localhost"):
        live(Feeder(log_of(Random(1), 5), options(url, secret), Random(1)))


def test_a_certificate_is_verified(secret: Path, tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl here to make a certificate")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert)]
    names = ["-days", "3650", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*made, *names], check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    with Receiver(SECRET, tls=tls) as receiver:
        given = {**options(receiver.url, secret), "plain_http": False}
        with pytest.raises(CdcUnavailable, match=r"[Cc]ertificate"):
            live(Feeder(log_of(Random(1), 5), given, Random(1)))
        assert receiver.requests == 0
        feeder = Feeder(log_of(Random(1), 5), {**given, "ca_file": str(cert)}, Random(1))
        live(feeder)
        assert len(receiver.events) == len(feeder.events)
        by_number = receiver.url.replace("localhost", "127.0.0.1")
        with pytest.raises(CdcUnavailable, match=r"[Cc]ertificate"):
            live(Feeder(log_of(Random(1), 5), {**given, "ca_file": str(cert), "url": by_number}, Random(1)))


def test_secrets_come_from_a_file_or_a_variable_and_are_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secrets"
    path.write_bytes(b"a-new-secret-of-mine\n" + SECRET + b"\n")
    monkeypatch.setenv("HOOK_SECRET", SECRET.decode())
    with Receiver(SECRET) as receiver:
        for given in ({"secret_file": str(path)}, {"secret_env": "HOOK_SECRET", "secret_file": ""}):
            live(Feeder(log_of(Random(1), 5), {**options(receiver.url, path), **given}, Random(1)))
        assert receiver.wrong == [], "the old secret's signature is there, too"
        path.write_bytes(b"\n".join([SECRET] * 3))
        wrong: list[tuple[bytes | None, dict[str, str], str]] = [
            (b"short", {}, "16 bytes"),
            (b"", {}, "0 found"),
            (SECRET + b"\n" + SECRET + b"\n" + SECRET, {}, "3 found"),
            (bytes(20), {}, "no secret"),
            (b"x" * 5000, {}, "no secret"),
            (None, {"secret_file": str(tmp_path / "none")}, "No such file"),
            (None, {"secret_env": "NO_SUCH_VARIABLE", "secret_file": ""}, "no NO_SUCH_VARIABLE"),
        ]
        for content, given, said in wrong:
            if content is not None:
                path.write_bytes(content)
            with pytest.raises(BadArgument, match=said) as raised:
                live(Feeder(log_of(Random(1), 5), {**options(receiver.url, path), **given}, Random(1)))
            assert SECRET.decode() not in str(raised.value) and "short" not in str(raised.value).replace("secret", "")
