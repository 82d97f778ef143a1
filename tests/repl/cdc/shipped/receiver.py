"""A web server of a test, in a thread of its own: aiohttp, with an order for each request."""

from __future__ import annotations

import asyncio
import re
import ssl
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import web
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

PAGE = Path(__file__).parents[4] / "docs" / "cdc" / "webhook.md"
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def verifier() -> Callable[..., bool]:
    """Returns the function that the page gives receivers."""
    *_, shown = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(shown, names)
    found: Callable[..., bool] = names["is_genuine"]
    return found


class Receiver:
    """Notes the events of every request that it answers with 2xx; a context manager."""

    def __init__(self, secret: bytes, answer: Answer | None = None, *, tls: ssl.SSLContext | None = None) -> None:
        self.taken: list[list[dict[str, Any]]] = []
        """The events of each request that was taken, in the order in which they were."""
        self.requests = 0
        self.wrong: list[str] = []
        """Everything that is not as the page says."""
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self._secret = secret
        self._answer = answer
        self._tls = tls
        self._is_genuine = verifier()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://localhost:{self.port}/events"

    @property
    def events(self) -> list[dict[str, Any]]:
        return [event for request in self.taken for event in request]

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _open(self) -> None:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._asked)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _asked(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        body = await request.read()
        self.headers.append(dict(request.headers))
        self.bodies.append(body)
        if request.method != "POST" or not self._is_genuine(self._secret, request.headers, body):
            self.wrong.append(f"{request.method} {request.path} {dict(request.headers)}")
        try:
            Webhook(self._secret.decode() if self._secret.startswith(b"whsec_") else self._secret).verify(
                body, dict(request.headers), json_parse=False
            )
        except WebhookVerificationError as error:
            self.wrong.append(f"Standard Webhooks: {error}: {dict(request.headers)}")
        answer = web.Response(status=204) if self._answer is None else await self._answer(request)
        if answer.status < 300:
            if request.content_type == "application/json":
                events = msgspec.json.decode(body)["data"]["entries"]
            else:
                events = [msgspec.json.decode(line) for line in body.splitlines()]
            first, last = request.headers["Vlsnlog-First"], request.headers["Vlsnlog-Last"]
            if [events[0]["vlsn"], events[-1]["vlsn"]] != [int(first), int(last)]:
                self.wrong.append(f"{first} to {last} are {events}")
            self.taken.append(events)
        return answer
