"""Every setting has an effect: the product reads it, and it changes what a node does."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import click
import pytest

from repl.cli.main import vlsnlog
from repl.config import COMMAND_SETTINGS, NODE_SETTINGS
from repl.node.gateway import Gateway
from repl.web.limits import AppendLimits
from tests.fakes.loop import run
from tests.repl.web.calls import BATCH, NDJSON, OCTETS, call
from tests.repl.web.one_node import started
from tests.seam.nodes import Group
from tests.vlsn.logs import SMALL, Machine, Opened
from vlsn.format import batch
from vlsn.state.options import LogOptions

PRODUCT = ("vlsn", "feeder", "replica", "repl")
ROOT = Path(__file__).parents[2]


def sources() -> Iterator[ast.Module]:
    for package in PRODUCT:
        for path in (ROOT / package).rglob("*.py"):
            if path != ROOT / "repl" / "config.py":
                yield ast.parse(path.read_text())


def read_from(owners: tuple[str, ...]) -> set[str]:
    """Attributes that the product reads of something named so: ``config.url``, ``self.node.config.url``."""
    found = set()
    for node in (node for tree in sources() for node in ast.walk(tree)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            owner = node.value
            name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
            if name in owners:
                found.add(node.attr)
    return found


def test_the_product_reads_every_setting_of_a_node() -> None:
    read = read_from(("config",))
    if {"host", "port"} <= read:
        read.add("listen")
    assert sorted(NODE_SETTINGS.keys() - read) == []


@pytest.mark.parametrize(
    ("kind", "owners"),
    [(LogOptions, ("options", "_options")), (AppendLimits, ("limits", "_limits", "self"))],
    ids=["log", "gateway"],
)
def test_the_product_reads_what_a_node_hands_on(kind: type, owners: tuple[str, ...]) -> None:
    names = {each.name for each in fields(kind)}
    assert sorted(names - read_from(owners)) == []


def test_every_setting_of_a_command_is_an_option_of_one() -> None:
    context = click.Context(vlsnlog)
    commands = [vlsnlog.get_command(context, name) for name in vlsnlog.list_commands(context)]
    options = {each.name for command in commands if command is not None for each in command.params}
    assert sorted(COMMAND_SETTINGS.keys() - options) == []


# What they do.


LIMITS = AppendLimits(
    entry_bytes_max=100, key_bytes_max=10, body_bytes_max=300, bodies_in_flight_bytes_max=500, timeout_s=0.05
)


async def test_the_gateways_limits_on_an_append_are_the_nodes_settings() -> None:
    gateway = Gateway((await started()).services, LIMITS)
    for headers, fits, over in (
        (OCTETS, bytes(100), bytes(101)),
        (NDJSON, b'{"value":"%b"}' % (b"x" * 100), b'{"value":"%b"}' % (b"x" * 101)),
        (NDJSON, b'{"value":"","key":"%b"}' % (b"x" * 10), b'{"value":"","key":"%b"}' % (b"x" * 11)),
        (NDJSON, b'{"value":""}\n' * 20, b'{"value":""}\n' * 24),
        (BATCH, batch.encode([bytes(100)]), batch.encode([bytes(101)])),
        (BATCH, batch.encode([b""], [bytes(10)]), batch.encode([b""], [bytes(11)])),
        (BATCH, batch.encode([bytes(90)] * 2), batch.encode([bytes(90)] * 3)),
    ):
        assert (await call(gateway, "POST", "/v1/entries", headers, fits)).status == 200
        refused = await call(gateway, "POST", "/v1/entries", headers, over)
        assert (refused.status, b"too-large" in bytes(refused.body)) == (413, True), (headers, refused)


async def test_bodies_in_flight_and_the_time_of_an_append_are_the_nodes_settings() -> None:
    gateway = Gateway((await started(hold=True)).services, LIMITS)
    waiting = [asyncio.create_task(call(gateway, "POST", "/v1/entries", OCTETS, bytes(100))) for _ in range(5)]
    await asyncio.sleep(0)
    refused = await call(gateway, "POST", "/v1/entries", OCTETS, b"x")
    assert refused.status == 429
    assert [answer.status for answer in await asyncio.gather(*waiting)] == [504] * 5


def test_a_log_keeps_as_much_free_as_it_is_told() -> None:
    machine = Machine()
    machine.disk.capacity_bytes = 10 * SMALL.segment_bytes
    told = Opened(machine, replace(SMALL, free_bytes_min=20 * SMALL.segment_bytes), take_term=False)
    assert told.log.no_space
    machine.kill()
    told = Opened(machine, replace(SMALL, free_bytes_min=0), take_term=False)
    assert not told.log.no_space


@pytest.mark.parametrize("idle_end_s", [0.5, 5.0])
def test_the_idle_end_is_stated_after_as_many_quiet_seconds_as_it_is_told(idle_end_s: float) -> None:
    opened = Opened(Machine(), replace(SMALL, idle_end_s=idle_end_s))
    opened.append(b"a")
    clock = opened.log.seams.clock
    opened.log.tick()
    clock.advance(idle_end_s * 0.9)  # type: ignore[attr-defined]
    opened.log.tick()
    assert opened.log.care.state.idle_end() is None
    clock.advance(idle_end_s * 0.2)  # type: ignore[attr-defined]
    opened.log.tick()
    assert opened.log.care.state.idle_end() is not None


@pytest.mark.parametrize("heartbeat_s", [0.1, 0.4])
def test_a_quiet_feed_beats_as_often_as_it_is_told(heartbeat_s: float) -> None:
    async def main() -> int:
        group = Group(3, heartbeat_s=heartbeat_s)
        await group.start()
        await group.serving()
        await group.until(lambda: group.state("n2") == group.state("n3") == "REPLICA", "both follow")
        await asyncio.sleep(3.0)
        following = group.nodes["n2"].member.role
        heard: set[float] = set()
        began = group.loop.time()
        while group.loop.time() < began + 6.0:
            heard.add(following.feed.heard_s)  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
        await group.stop()
        return len(heard)

    assert abs(run(main()) - 6.0 / heartbeat_s) <= 3


@pytest.mark.parametrize("readers_max", [0, 1])
def test_as_many_readers_wait_as_it_is_told(readers_max: int) -> None:
    async def main() -> list[str | None]:
        group = Group(3, readers_max=readers_max)
        await group.start()
        await group.serving()
        url = group.nodes["n2"].member.config.url + "/v1/entries?from=1000&wait=1"
        asking = [group.client.request("GET", url, timeout_s=5) for _ in range(2)]
        answers = await asyncio.gather(*asking)
        await group.stop()
        return [answer.headers.get("Retry-After") for answer in answers if answer.status == 429]

    assert run(main()) == (["1"] if readers_max else [])
