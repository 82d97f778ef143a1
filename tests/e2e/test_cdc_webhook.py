"""A webhook of a real node: everything is taken, signed and in order, over kills of child and node."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.e2e.cdc_pages import example, toml
from tests.e2e.commands import run
from tests.e2e.test_cdc import One, eventually, node
from tests.repl.cdc.shipped.receiver import Receiver
from tests.repl.cdc.shipped.test_webhook import SECRET, unkind

pytestmark = pytest.mark.real
__all__ = ["node"]


def hook(url: str, tmp_path: Path, **more: Any) -> str:
    """Returns the page's table for a server of this test."""
    path = tmp_path / "hook.secret"
    path.write_bytes(SECRET)
    table = example("webhook.md", url=url, secret_file=str(path))
    return toml({**table, "options": {**table["options"], "plain_http": True, "timeout_s": 1.0, **more}})


def test_everything_is_taken_in_order_over_kills(node: Callable[..., One], tmp_path: Path) -> None:
    with Receiver(SECRET, unkind(Random(1))) as receiver:
        one = node(hook(receiver.url, tmp_path, batch_events=10))
        for turn in range(6):
            one.append(*[b"%d" % number for number in range(20 * turn, 20 * turn + 20)])
            eventually(lambda turn=turn: len(receiver.events) > 20 * turn, "some are taken", 240.0)  # type: ignore[misc]
            if turn % 2:
                one.end(signal.SIGKILL)
                one.start()
            else:
                with suppress(ProcessLookupError):
                    os.kill(one.pid("hook"), signal.SIGKILL)
        wanted = [str(number) for number in range(120)]

        def taken() -> list[str]:
            values = {event["vlsn"]: event["value"] for event in receiver.events}
            return list(values.values())

        eventually(lambda: len(taken()) >= len(wanted), "all are taken", 240.0)
        assert taken() == wanted, "the first times of all are in order"
        assert receiver.wrong == []


def test_what_says_never_parks_it_and_later_is_waited_for(node: Callable[..., One], tmp_path: Path) -> None:
    said: dict[str, Any] = {"status": 503, "headers": {"Retry-After": "3000"}}

    async def answer(request: Any) -> Any:
        from aiohttp import web

        return web.Response(**said)

    with Receiver(SECRET, answer) as receiver:
        one = node(hook(receiver.url, tmp_path, retry_after_max_s=3000.0, timeout_s=20.0) + "\nretries_max = 1")
        one.append(b"one")
        eventually(lambda: one.told("hook")["state"] == "backoff" and receiver.requests > 0, "it waits", 240.0)
        asked = receiver.requests
        assert "answered 503" in str(one.told("hook")["reason"])
        said.update(status=404, headers={})
        assert receiver.requests == asked, "not before it was told"
        assert run("cdc", "resume", "hook", "--url", one.url).status == 0
        eventually(lambda: one.told("hook")["state"] == "parked", "it is parked", 240.0)
        assert "answered 404" in str(one.told("hook")["reason"])
        assert SECRET.decode() not in (tmp_path / "node.log").read_text()
        said.update(status=200)
        assert run("cdc", "resume", "hook", "--url", one.url).status == 0
        eventually(lambda: [event["value"] for event in receiver.events] == ["one"], "it goes on", 240.0)
