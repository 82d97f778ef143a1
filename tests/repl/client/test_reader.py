"""Reads and tails through the client: their entries, their end, and the loss of a node."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from typing import Any

import pytest

from repl import connect
from repl.api import BlockPage
from repl.client import reader as tail
from repl.client.endpoints import Endpoints
from repl.client.page import decode_blocks
from repl.client.reader import Reader
from repl.net.network import AiohttpNetwork
from repl.node.node import Node
from repl.web.types import Request, Response, Upgrade
from tests.fakes.loop import virtual
from tests.repl.client.group import at_socket, served, serving, until
from tests.repl.web.one_node import FIRST, TERM, cleaned
from tests.seam.nodes import Group
from vlsn.errors import BadArgument, BadBody, Damaged, Halted, Trimmed, Unreachable, VlsnLogError
from vlsn.format.seal import seal
from vlsn.format.submission import Values
from vlsn.ids import Term
from vlsn.levels import LEVELS


async def filled(url: str, count: int) -> None:
    async with connect(url) as log:
        for start in range(0, count, 10):
            await log.append_many([b"%d" % number for number in range(start, min(start + 10, count))])


async def read_all(url: str, *args: Any, **kwargs: Any) -> list[tuple[int, bytes]]:
    async with connect(url, timeout_s=2) as log:
        return [(entry.vlsn, entry.value) async for entry in log.read(*args, **kwargs)]


async def test_read_gives_every_entry_once_in_order_with_all_its_fields() -> None:
    async with serving() as node, connect(node.url) as log:
        await log.append(b"value", key=b"k")
        await log.append_many([b"", b"c"])
        entries = [entry async for entry in log.read()]
    assert [(entry.vlsn, entry.key, entry.value) for entry in entries] == [
        (FIRST, b"k", b"value"),
        (FIRST + 1, None, b""),
        (FIRST + 2, None, b"c"),
    ]
    assert all(entry.term == TERM and entry.time > 1_600_000_000_000_000 for entry in entries)


async def test_read_keeps_to_its_bounds_inside_blocks() -> None:
    async with serving() as node:
        await filled(node.url, 30)
        assert await read_all(node.url, 9, 26) == [(vlsn, b"%d" % (vlsn - FIRST)) for vlsn in range(9, 27)]
        assert await read_all(node.url, 27, 27) == [(27, b"23")]
        assert await read_all(node.url, from_vlsn=33) == [(33, b"29")]
        assert await read_all(node.url, 34) == []
        assert await read_all(node.url, 5, 4) == []
        with pytest.raises(BadArgument, match="from_vlsn"):
            await read_all(node.url, 0)


async def test_read_ends_at_what_was_durable_when_it_began() -> None:
    async with serving() as node, connect(node.url) as log:
        await log.append(b"before")
        seen = []
        async for page in log.read_pages():
            await node.append(b"after")
            seen += [entry.value for entry in page.entries]
        assert seen == [b"before"]


async def test_what_was_trimmed_is_told_with_the_first_that_is_left() -> None:
    node = await cleaned()
    async with at_socket(node) as url:
        with pytest.raises(Trimmed) as caught:
            await read_all(url, FIRST)
        assert caught.value.first == node.opened().log.view.range.first > FIRST


FAULTS = (Damaged("bad", file="f", offset=8, vlsn=3), Halted("halted"), VlsnLogError("bug"))


def failing(node: Node, fault: VlsnLogError) -> None:
    """Has every read of blocks fail from here on."""

    async def fail(*_: Any, **__: Any) -> BlockPage:
        raise fault

    node.opened().reads.blocks = fail  # type: ignore[method-assign]


@pytest.mark.parametrize("fault", FAULTS)
@virtual
async def test_a_node_that_fails_is_left_for_the_next(fault: VlsnLogError) -> None:
    group = Group(1, 2, levels=LEVELS, keyed=False)
    await group.start()
    await group.serving("n1")
    await group.append(b"a")
    failing(group.nodes["n2"], fault)
    async with connect(f"{group.url('n2')},{group.url('n1')}", network=group.client) as log:
        assert [entry.value async for entry in log.read()] == [b"a"]
    await group.stop()


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_fault_of_the_only_node_is_raised(fault: VlsnLogError) -> None:
    async with serving() as node:
        failing(node, fault)
        with pytest.raises(type(fault)):
            await read_all(node.url)


async def test_without_any_node_a_read_gives_up() -> None:
    async with connect("http://127.0.0.1:9", timeout_s=0.3) as log:
        with pytest.raises(Unreachable):
            await anext(aiter(log.read()))


async def test_a_block_with_a_flipped_bit_is_never_shown() -> None:
    async with serving() as node:
        await filled(node.url, 10)
        blocks = node.opened().reads.blocks

        async def flipped(from_vlsn: int | None, *, bytes_max: int) -> BlockPage:
            page = await blocks(from_vlsn, bytes_max=bytes_max)
            broken = bytearray(page.data[0])
            broken[-1] ^= 1
            return replace(page, data=[bytes(broken), *page.data[1:]])

        node.opened().reads.blocks = flipped  # type: ignore[method-assign]
        with pytest.raises(BadBody):
            await read_all(node.url)


async def test_a_server_that_is_no_node_is_named() -> None:
    async def handle(request: Request) -> Response | Upgrade:
        return Response(200, {}, b"hello")

    async with served(handle) as listener:
        with pytest.raises(BadBody, match="vlsnlog node"):
            await read_all(listener.url)


def test_decode_blocks_shows_only_kinds_and_vlsns_asked_for() -> None:
    blocks = [seal([Values([b"x" * length])], term=Term(1), first_vlsn=at, dtvlsn=0, clock_us=9)[0].data
              for at, length in ((1, 3), (2, 0), (3, 11))]  # fmt: skip
    body = memoryview(b"".join(data + bytes(-len(data) % 8) for data in blocks))
    assert [entry.vlsn for entry in decode_blocks(body, from_vlsn=2, kinds=None)[0]] == [2, 3]
    assert decode_blocks(body, from_vlsn=0, kinds=frozenset({1})) == ([], 1)
    assert decode_blocks(memoryview(b""), from_vlsn=0, kinds=None) == ([], 0)
    ends = {sum(len(data) + -len(data) % 8 for data in blocks[:count]) for count in range(len(blocks) + 1)}
    for size in set(range(0, len(body), 8)) - ends:
        with pytest.raises(BadBody):
            decode_blocks(body[:size], from_vlsn=0, kinds=None)


async def test_tail_shows_what_comes_as_it_comes() -> None:
    async with serving() as node, connect(node.url) as log, connect(node.url) as other:
        await log.append(b"old")
        seen: list[bytes] = []

        async def follow() -> None:
            async for page in log.tail_pages(from_vlsn=FIRST):
                seen.extend(entry.value for entry in page.entries)

        following = asyncio.create_task(follow())
        await until(lambda: seen == [b"old"])
        await other.append(b"new")
        await until(lambda: seen == [b"old", b"new"])
        await other.append_many([b"x", b"y"])
        await until(lambda: seen == [b"old", b"new", b"x", b"y"])
        following.cancel()


@virtual
async def test_tail_goes_on_through_the_loss_of_its_node_without_doubles_or_holes() -> None:
    group = Group(1, levels=LEVELS)
    await group.start()
    await group.serving("n1")
    vlsns = [await group.appended(b"%d" % number) for number in range(3)]
    seen: list[int] = []
    async with connect(f"{group.url('n2')},{group.url('n1')}", network=group.client) as log:

        async def follow() -> None:
            async for page in log.tail_pages():
                seen.extend(entry.vlsn for entry in page.entries)

        following = asyncio.create_task(follow())
        await group.until(lambda: seen == vlsns, "all is seen")
        group.kill("n2")
        vlsns.append(await group.appended(b"after the loss", to="n1"))
        await group.until(lambda: seen == vlsns, "the next is seen")
        following.cancel()
    await group.stop()


@virtual
async def test_a_tail_waits_once_for_a_node_that_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node holds its connections and says nothing, as between SIGSTOP and SIGCONT. It does not even say that there
    is nothing new, when that is due."""
    monkeypatch.setattr(tail, "FOLLOW_WAIT_S", 0.2)
    monkeypatch.setattr(tail, "ANSWER_TIMEOUT_S", 30.0)

    group = Group(1, 2, levels=LEVELS, keyed=False)
    await group.start()
    await group.serving("n1")
    vlsns = [await group.appended(b"%d" % number) for number in range(3)]
    cancelled = 0

    async def sleep(*_: Any, **__: Any) -> BlockPage:
        nonlocal cancelled
        try:
            await asyncio.sleep(60)
        finally:
            cancelled += 1
        raise AssertionError

    group.nodes["n2"].opened().reads.blocks = sleep  # type: ignore[method-assign]
    async with connect(f"{group.url('n2')},{group.url('n1')}", network=group.client) as log:
        began = group.loop.time()
        async for page in log.tail_pages():
            assert [entry.vlsn for entry in page.entries] == vlsns
            break
        assert group.loop.time() - began < 30.0
        await group.until(lambda: cancelled == 1, "the node has noticed")
    await group.stop()


async def test_a_node_that_fails_as_another_one_answers_is_not_heard_of() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    network = AiohttpNetwork()
    reader = Reader(Endpoints(network, ["http://127.0.0.1:1", "http://127.0.0.1:2"]), give_up_s=5)

    async def ask(url: str) -> str:
        if url.endswith("2"):
            return "an answer"
        try:
            await asyncio.Event().wait()
        finally:  # it may as well have failed by itself in the same turn of the loop
            raise Unreachable(url)

    assert await reader._of_any(ask, silent_s=0.01) == "an answer"
    for _ in range(5):
        await asyncio.sleep(0)
    gc.collect()
    assert told == []


async def test_tail_ends_when_what_it_needs_was_trimmed() -> None:
    node = await cleaned()
    async with at_socket(node) as url, connect(url) as log:
        with pytest.raises(Trimmed):
            await anext(aiter(log.tail(from_vlsn=FIRST)))
