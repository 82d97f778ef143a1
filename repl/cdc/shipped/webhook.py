"""Sends events as signed requests to a web server: each at least once, in order, until the server accepts them.

    POST URL      webhook-id: msg_4f2a…    webhook-timestamp: 1795000000    webhook-signature: v1,K5oZ…
                  Vlsnlog-Timestamp: 1795000000      Vlsnlog-Signature: v1=6f0c…      a line of JSON for each event

1. A position is committed once every event before it was in a request that was answered with a 2xx status.
2. One batch is sent after another. A batch is one request, or with ``lanes`` (parallel connections) one request for
   each lane. Events of one key are sent in one lane, in their order.
3. If a status means "later" (see ``AGAIN``), the request is sent again, as often as needed. Any other status is a
   failure, and parks the consumer after ``retries_max`` failures. Redirects are never followed.
4. Every try has new signatures, over the time of the try and the body. One is made by the rules of Standard Webhooks,
   so a receiver may use any of its libraries. The ``webhook-id`` of the same events is the same in every try.
"""

from __future__ import annotations

import asyncio
import binascii
import hmac
import io
import ssl
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from hashlib import sha256
from typing import Final

import aiohttp
import msgspec
from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_random_exponential

from repl.cdc.consumer import CdcConsumer, CdcContext, CdcEvent, CdcEvents, CdcUnavailable
from repl.cdc.shipped.options import options_of
from repl.cdc.shipped.secret import secret_of
from repl.cdc_settings import WebhookOptions, without_query
from repl.web import ndjson
from vlsn.errors import BadArgument
from vlsn.format.checksum import crc

AGAIN: Final = frozenset({408, 425, 429, *range(500, 600)})
"""HTTP statuses after which the server may accept the same request later."""
SECRETS_MAX: Final = 2
SECRET_BYTES_MIN: Final = 16
TRY_S: Final = 15.0
"""One call tries for this many seconds. After that the consumer's process ends, and the node starts it again a while
later."""
PAUSE_S: Final = (0.1, 2.0)
STANDARD_PREFIX: Final = b"whsec_"
"""A secret that begins so is base64 after it, as Standard Webhooks has secrets."""
EVENT_TYPE: Final = "vlsnlog.entries"
ANSWER_BYTES_MAX: Final = 64 * 1024
"""The most bytes of an answer that are read. If an answer is longer, the connection is closed."""
SAID_MAX: Final = 200


class WebhookRefused(Exception):
    """The server has answered that it will never accept the same request."""


class _Later(Exception):
    """The server did not answer, or answered that it may accept the request later. ``after_s`` is the answer's
    ``Retry-After`` in seconds."""

    def __init__(self, why: str, after_s: float = 0.0) -> None:
        super().__init__(why)
        self.after_s = after_s


class Webhook(CdcConsumer):
    """Posts events as signed lines of JSON."""

    def __init__(self, wall_s: Callable[[], float] = time.time, try_s: float = TRY_S) -> None:
        self._wall_s = wall_s
        self._try_s = try_s
        self._runner = asyncio.Runner()
        self._session: aiohttp.ClientSession | None = None

    def start(self, context: CdcContext) -> None:
        self._options = options = options_of(WebhookOptions, context.options)
        self._secrets = _secrets(options)
        self._keys = [_key(secret) for secret in self._secrets]
        self._shown = without_query(options.url)
        self._headers = {
            "Content-Type": "application/json" if options.format == "standard" else "application/x-ndjson",
            "User-Agent": "vlsnlog",
            "Vlsnlog-Group": context.group,
            "Vlsnlog-Consumer": context.name,
        }
        self._session = self._runner.run(self._opened(_trusted(options)))

    def on_events(self, events: CdcEvents) -> bool:
        taken = self._taken(events)
        if not taken:
            return False
        self._runner.run(self._posted(taken))
        return True

    def stop(self) -> None:
        if self._session is not None:
            self._runner.run(self._session.close())
        self._runner.close()

    def _taken(self, events: CdcEvents) -> list[CdcEvent]:
        """Takes the events of one batch."""
        taken, size = [], 0
        for event in events:
            taken.append(event)
            size += len(event.value) + len(event.key or b"")
            if len(taken) >= self._options.batch_events or size >= self._options.batch_bytes:
                break
        return taken

    async def _opened(self, trusted: ssl.SSLContext) -> aiohttp.ClientSession:
        options = self._options
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=options.lanes, ssl=trusted),
            timeout=aiohttp.ClientTimeout(total=options.timeout_s, sock_connect=options.connect_timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        )

    async def _posted(self, events: Sequence[CdcEvent]) -> None:
        """Posts all events. Raises ``WebhookRefused``, ``CdcUnavailable``. The server may have accepted some events
        before an error."""
        lanes: dict[int, list[CdcEvent]] = {}
        for event in events:
            lanes.setdefault(crc(event.key or b"") % self._options.lanes, []).append(event)
        ended = await asyncio.gather(*map(self._post, lanes.values()), return_exceptions=True)
        failures = [error for error in ended if error is not None]
        for error in sorted(failures, key=lambda error: isinstance(error, CdcUnavailable)):
            raise error

    async def _post(self, batch: Sequence[CdcEvent]) -> None:
        """Posts one request again and again until the server accepts it."""
        body = ndjson.encode(batch, kinds=False, txns=True)
        if self._options.format == "standard":
            body = self._enveloped(batch, body)
        headers = {"Vlsnlog-First": str(batch[0].vlsn), "Vlsnlog-Last": str(batch[-1].vlsn), **self._headers}
        headers["webhook-id"] = self._id(batch)
        retrying = AsyncRetrying(
            wait=wait_random_exponential(PAUSE_S[0], max=PAUSE_S[1]),
            stop=stop_after_delay(self._try_s),
            retry=retry_if_exception(_is_soon),
            sleep=asyncio.sleep,
            reraise=True,
        )
        try:
            await retrying(self._ask, body, headers)
        except _Later as error:
            raise CdcUnavailable(f"{self._shown}: {error}", error.after_s) from None

    def _enveloped(self, batch: Sequence[CdcEvent], lines: bytes) -> bytes:
        """Returns the events as the JSON object that Standard Webhooks has, from their lines."""
        told = {
            "type": EVENT_TYPE,
            "timestamp": datetime.fromtimestamp(batch[-1].time / 1e6, UTC).isoformat().replace("+00:00", "Z"),
            "data": {
                "group": self._headers["Vlsnlog-Group"],
                "consumer": self._headers["Vlsnlog-Consumer"],
                "entries": msgspec.Raw(b"[" + lines.rstrip(b"\n").replace(b"\n", b",") + b"]"),
            },
        }
        return msgspec.json.encode(told)

    def _id(self, batch: Sequence[CdcEvent]) -> str:
        """Returns the ID of a request with these events; a request with other events has another one."""
        numbered = ",".join(str(event.vlsn) for event in batch)
        text = f"{self._headers['Vlsnlog-Group']}/{self._headers['Vlsnlog-Consumer']}/{numbered}"
        return f"msg_{sha256(text.encode()).hexdigest()[:32]}"

    async def _ask(self, body: bytes, headers: dict[str, str]) -> None:
        assert self._session is not None
        at = str(int(self._wall_s()))
        signed = ",".join(f"v1={signature(secret, at, body)}" for secret in self._secrets)
        named = f"{headers['webhook-id']}.{at}".encode()
        standard = " ".join(f"v1,{standard_signature(key, named, body)}" for key in self._keys)
        headers = {**headers, "Vlsnlog-Timestamp": at, "Vlsnlog-Signature": signed}
        headers |= {"webhook-timestamp": at, "webhook-signature": standard}
        try:
            async with self._session.post(
                self._options.url, data=io.BytesIO(body), headers=headers, allow_redirects=False
            ) as answer:
                said = await answer.content.read(ANSWER_BYTES_MAX)
                while len(said) < ANSWER_BYTES_MAX and (more := await answer.content.read(ANSWER_BYTES_MAX)):
                    said += more
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _Later(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__) from None
        self._judge(answer, said)

    def _judge(self, answer: aiohttp.ClientResponse, said: bytes) -> None:
        status = answer.status
        if 200 <= status < 300:
            return
        shown = "".join(each if each.isprintable() else " " for each in said[:SAID_MAX].decode("utf-8", "replace"))
        why = f"answered {status} {shown}".strip()
        if status in AGAIN:
            raise _Later(why, self._wait_of(answer.headers.get("Retry-After", "")))
        if 300 <= status < 400:
            why = f"answered {status}, to another place: redirects are not followed; correct url"
        raise WebhookRefused(f"{self._shown}: {why}")

    def _wait_of(self, text: str) -> float:
        """Returns the seconds that a ``Retry-After`` header says, as a number or a date; 0 for any other text."""
        text = text.strip()
        if text.isascii() and text.isdigit():
            wait_s = float(text[:10])
        else:
            try:
                wait_s = parsedate_to_datetime(text).timestamp() - self._wall_s()
            except (ValueError, OverflowError):
                return 0.0
        return min(max(wait_s, 0.0), self._options.retry_after_max_s)


def _is_soon(error: BaseException) -> bool:
    """Returns whether to try again within this call. If the wait is longer, the consumer's process ends instead."""
    return isinstance(error, _Later) and not error.after_s


def signature(secret: bytes, at: str, body: bytes) -> str:
    """Returns the HMAC-SHA256 of the time (seconds since the epoch), a dot and the body, in hex."""
    return hmac.new(secret, at.encode() + b"." + body, "sha256").hexdigest()


def standard_signature(key: bytes, named: bytes, body: bytes) -> str:
    """Returns the HMAC-SHA256 of ``named`` (the ID, a dot, the time), a dot and the body, in base64."""
    return b64encode(hmac.new(key, named + b"." + body, "sha256").digest()).decode()


def _key(secret: bytes) -> bytes:
    """Returns the key of signatures by Standard Webhooks. Raises ``BadArgument``."""
    if not secret.startswith(STANDARD_PREFIX):
        return secret
    try:
        return b64decode(secret.removeprefix(STANDARD_PREFIX), validate=True)
    except binascii.Error:
        raise BadArgument("options: secret: what follows whsec_ is no base64") from None


def _secrets(options: WebhookOptions) -> list[bytes]:
    found = secret_of("secret", options.secret_file, options.secret_env).split()
    if not 1 <= len(found) <= SECRETS_MAX or any(len(secret) < SECRET_BYTES_MIN for secret in found):
        raise BadArgument(
            f"options: secret: {len(found)} found; give one, or a new and an old one, a line each, of "
            f"{SECRET_BYTES_MIN} bytes or more without spaces"
        )
    return found


def _trusted(options: WebhookOptions) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=options.ca_file or None)
    except OSError as error:  # `ssl.SSLError` is an `OSError`
        raise BadArgument(f"options: ca_file: {options.ca_file}: {error.strerror or error}") from None
