"""Reads and tails through the client: their entries, their end, and the loss of a node."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from repl import connect
from repl.api import BlockPage
from repl.client import reader as tail
from repl.client.endpoints import Endpoints
from repl.client.page import decode_blocks
from repl.client.reader import Reader
from repl.net.network import AiohttpNetwork
from repl.node.gateway import Gateway
from repl.web.types import Request, Response, Upgrade
from tests.repl.client.group import GroupNode, served, serving, until
from vlsn.errors import BadArgument, BadBody, Damaged, Halted, Trimmed, Unreachable, VlsnLogError
from vlsn.format.seal import seal
from vlsn.format.submission import Values
from vlsn.ids import Term


async def filled(url: str, count: int) -> None:
    async with connect(url) as log:
        for start in range(0, count, 10):
            await log.append_many([b"%d" % number for number in range(start, min(start + 10, count))])


async def read_all(url: str, *args: Any, **kwargs: Any) -> list[tuple[int, bytes]]:
    async with connect(url, timeout_s=2) as log:
        return [(entry.vlsn, entry.value) async for entry in log.read(*args, **kwargs)]


async def test_read_gives_every_entry_once_in_order_with_all_its_fields() -> None:
    node = GroupNode()
    async with serving(node) as url, connect(url) as log:
        await log.append(b"value", key=b"k")
        await log.append_many([b"", b"c"])
        entries = [entry async for entry in log.read()]
    assert [(entry.vlsn, entry.key, entry.value) for entry in entries] == [
        (2, b"k", b"value"),
        (3, None, b""),
        (4, None, b"c"),
    ]
    assert all(entry.term == 7 and entry.time > 1_600_000_000_000_000 for entry in entries)


async def test_read_keeps_to_its_bounds_inside_blocks() -> None:
    node = GroupNode()
    async with serving(node) as url:
        await filled(url, 30)
        assert await read_all(url, 7, 24) == [(vlsn, b"%d" % (vlsn - 2)) for vlsn in range(7, 25)]
        assert await read_all(url, 25, 25) == [(25, b"23")]
        assert await read_all(url, from_vlsn=31) == [(31, b"29")]
        assert await read_all(url, 32) == []
        assert await read_all(url, 5, 4) == []
        with pytest.raises(BadArgument, match="from_vlsn"):
            await read_all(url, 0)


async def test_read_ends_at_what_was_durable_when_it_began() -> None:
    node = GroupNode()
    async with serving(node) as url, connect(url) as log:
        await log.append(b"before")
        seen = []
        async for page in log.read_pages():
            node.entries.append(node.entries[-1])
            seen += [entry.value for entry in page.entries]
        assert seen == [b"before"]


async def test_a_lagging_node_is_given_time_to_show_what_this_client_appended() -> None:
    master, replica = GroupNode(name="n1"), GroupNode(name="n2", leads=False, leader="n1")
    async with (
        serving(master) as master_url,
        serving(replica) as replica_url,
        connect(f"{replica_url},{master_url}") as log,
    ):
        vlsn = await log.append(b"mine")
        reading = asyncio.create_task(_collect(log))
        await until(lambda: bool(replica.waits))
        replica.blocks = list(master.blocks)
        replica.append(b"mine")
        assert await reading == [(vlsn, b"mine")]


async def _collect(log: Any) -> list[tuple[int, bytes]]:
    return [(entry.vlsn, entry.value) async for entry in log.read()]


async def test_what_was_trimmed_is_told_with_the_first_that_is_left() -> None:
    node = GroupNode()
    async with serving(node) as url:
        await filled(url, 30)
        node.first = 12
        with pytest.raises(Trimmed) as caught:
            await read_all(url, 3)
        assert caught.value.first == 12


@pytest.mark.parametrize("fault", [Damaged("bad", file="f", offset=8, vlsn=3), Halted("halted"), VlsnLogError("bug")])
async def test_a_node_that_fails_is_left_for_the_next(fault: VlsnLogError) -> None:
    class Failing(GroupNode):
        async def read_blocks(self, from_vlsn: int | None, *, bytes_max: int) -> BlockPage:
            raise fault

    good = GroupNode(name="n2")
    async with serving(Failing()) as bad_url, serving(good) as good_url:
        await filled(good_url, 5)
        assert len(await read_all(f"{bad_url},{good_url}")) == 5
        with pytest.raises(type(fault)):
            await read_all(bad_url)


async def test_without_any_node_a_read_gives_up() -> None:
    async with connect("http://127.0.0.1:9", timeout_s=0.3) as log:
        with pytest.raises(Unreachable):
            await anext(aiter(log.read()))


async def test_a_block_with_a_flipped_bit_is_never_shown() -> None:
    node = GroupNode()
    async with serving(node) as url:
        await filled(url, 10)
        broken = bytearray(node.blocks[0])
        broken[-1] ^= 1
        node.blocks[0] = bytes(broken)
        with pytest.raises(BadBody):
            await read_all(url)


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
    node = GroupNode()
    async with serving(node) as url, connect(url) as log, connect(url) as other:
        await log.append(b"old")
        seen: list[bytes] = []

        async def follow() -> None:
            async for page in log.tail_pages(from_vlsn=2):
                seen.extend(entry.value for entry in page.entries)

        following = asyncio.create_task(follow())
        await until(lambda: seen == [b"old"])
        await other.append(b"new")
        await until(lambda: seen == [b"old", b"new"])
        await other.append_many([b"x", b"y"])
        await until(lambda: seen == [b"old", b"new", b"x", b"y"])
        following.cancel()


async def test_tail_goes_on_through_the_loss_of_its_node_without_doubles_or_holes() -> None:
    one, two = GroupNode(name="n1"), GroupNode(name="n2")
    async with serving(two) as url_two:
        await filled(url_two, 3)
        one.entries, one.blocks, one.durable = list(two.entries), list(two.blocks), two.durable
        seen: list[int] = []
        async with served(Gateway(one.services).handle) as listener, connect(f"{listener.url},{url_two}") as log:

            async def follow() -> None:
                async for page in log.tail_pages():
                    seen.extend(entry.vlsn for entry in page.entries)

            following = asyncio.create_task(follow())
            await until(lambda: seen == [2, 3, 4])
            await listener.close()
            async with connect(url_two) as other:
                await other.append(b"after the loss")
            await until(lambda: seen == [2, 3, 4, 5])
            following.cancel()


async def test_a_tail_waits_once_for_a_node_that_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node holds its connections and says nothing, as between SIGSTOP and SIGCONT. It does not even say that there
    is nothing new, when that is due."""
    monkeypatch.setattr(tail, "FOLLOW_WAIT_S", 0.2)
    monkeypatch.setattr(tail, "ANSWER_TIMEOUT_S", 30.0)

    class Stopped(GroupNode):
        cancelled = 0

        async def read_blocks(self, from_vlsn: int | None, *, bytes_max: int) -> BlockPage:
            try:
                await asyncio.sleep(60)
            finally:
                self.cancelled += 1
            raise AssertionError

    stopped, good = Stopped(), GroupNode(name="n2")
    async with serving(stopped) as url, serving(good) as good_url, connect(f"{url},{good_url}") as log:
        await filled(good_url, 3)
        began = asyncio.get_running_loop().time()
        async for page in log.tail_pages():
            assert [entry.vlsn for entry in page.entries] == [2, 3, 4]
            break
        assert asyncio.get_running_loop().time() - began < 30.0
        await until(lambda: stopped.cancelled == 1)


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
    node = GroupNode(first=5, durable=9)
    async with serving(node) as url, connect(url) as log:
        with pytest.raises(Trimmed):
            await anext(aiter(log.tail(from_vlsn=2)))
