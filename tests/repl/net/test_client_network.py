"""The network of a client, as far as it differs from a node's: what it imports, its sockets, its deliveries."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from repl.net.channel import ProtocolTap, SocketChannel
from repl.net.client_network import ClientNetwork, OwnSocket
from repl.net.network import AiohttpNetwork
from repl.web.types import Request, Upgrade
from tests.repl.net.test_arrivals import frame
from vlsn.errors import ChannelClosed
from vlsn.limits import MIB
from vlsn.seams import Channel

LARGE = bytes(5000)
ROOMS = {"channel", "client_network", "frames", "tap"}
"""The modules of ``repl.net`` that a client imports: none of them serves."""
OF_NODES = {"vlsn.real.disk", "vlsn.real.lmdb_store", "lmdb", "uvloop"}


def test_a_client_imports_nothing_that_serves() -> None:
    code = "import repl.net.client_network, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = set(done.stdout.split())
    assert {each.removeprefix("repl.net.") for each in found if each.startswith("repl.net.")} == ROOMS
    assert not found & OF_NODES


async def test_a_client_does_not_serve() -> None:
    async def handler(request: Request) -> Upgrade:
        raise AssertionError

    with pytest.raises(NotImplementedError):
        await ClientNetwork().serve("127.0.0.1", 0, handler)


@pytest.mark.parametrize("how", ["close", "forget"])
def test_a_socket_closes_its_own_descriptor_alone(how: str) -> None:
    with socket.socket() as other:
        ours = OwnSocket(socket.AF_INET, socket.SOCK_STREAM, 0)
        assert ours.owns()
        number = ours.fileno()
        for is_ours in (False, True):
            if not is_ours:
                os.dup2(
                    other.fileno(), number
                )  # libuv has closed the descriptor, and another connection has its number
                assert not ours.owns()
            if how == "close":
                ours.close()
            else:
                del ours
            if not is_ours:
                os.fstat(number)
                os.close(number)
                ours = OwnSocket(socket.AF_INET, socket.SOCK_STREAM, 0)
                number = ours.fileno()
            else:
                with pytest.raises(OSError, match="Bad file descriptor"):
                    os.fstat(number)


def test_a_forked_child_ends_no_connection_of_its_parent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = OwnSocket(socket.AF_INET, socket.SOCK_STREAM, 0)
        ours.connect(listening.getsockname())
        other, _ = listening.accept()
        with other:
            child = os.fork()
            if not child:
                ours.end()
                os._exit(0)
            os.waitpid(child, 0)
            ours.sendall(b"goes on")
            assert other.recv(100) == b"goes on"
            ours.end()
            assert other.recv(100) == b""
        ours.close()


async def test_a_delivery_that_ends_leaves_nothing_in_a_cycle() -> None:
    def fails(message: bytes) -> bool:
        raise ValueError("no such message")

    async with delivering() as (channel, tap):
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            for how in ("enough", "fault", "cancel"):
                task = asyncio.create_task(channel.deliver(fails if how == "fault" else lambda message: False))
                await asyncio.sleep(0)
                if how == "cancel":
                    task.cancel()
                else:
                    tap.feed_data(frame(2, b"last", masked=False))
                await asyncio.wait([task])
                del task
                await asyncio.sleep(0)
                gc.set_debug(gc.DEBUG_SAVEALL)
                gc.collect()
                gc.set_debug(0)
                found = [each for each in gc.garbage if isinstance(each, BaseException)]
                gc.garbage.clear()
                assert found == [], how
        finally:
            gc.enable()
            gc.unfreeze()


@asynccontextmanager
async def delivering() -> AsyncIterator[tuple[SocketChannel, ProtocolTap]]:
    """Yields a channel to a listener that stays silent, and the channel's tap."""

    async def silent(channel: Channel) -> None:
        try:
            await channel.receive()
        except ChannelClosed:
            pass

    async def handler(request: Request) -> Upgrade:
        return Upgrade(silent, MIB)

    listener, network = await AiohttpNetwork().serve("127.0.0.1", 0, handler), ClientNetwork()
    channel = await network.connect(listener.url, message_bytes_max=MIB, timeout_s=60)
    assert isinstance(channel, SocketChannel)
    assert isinstance(channel._tap, ProtocolTap)
    try:
        yield channel, channel._tap
    finally:
        await channel.close()
        await network.close()
        await listener.close()


async def test_a_small_message_waits_for_the_larger_ones_before_it() -> None:
    taken: list[bytes] = []

    def take(message: bytes) -> bool:
        taken.append(message)
        return len(taken) < 4

    async with delivering() as (channel, tap):
        task = asyncio.create_task(channel.deliver(take))
        await asyncio.sleep(0)
        for message in (b"first", LARGE, b"third", b"fourth"):  # all in one turn
            tap.feed_data(frame(2, message, masked=False))
        assert taken == [b"first"]
        await asyncio.wait_for(task, 60)
        assert taken == [b"first", LARGE, b"third", b"fourth"]


async def test_what_looks_like_a_message_within_a_larger_one_is_none() -> None:
    taken: list[bytes] = []

    def take(message: bytes) -> bool:
        taken.append(message)
        return False

    inner = frame(2, b"no message", masked=False)
    async with delivering() as (channel, tap):
        outer = frame(2, LARGE + inner, masked=False)
        tap.feed_data(outer[: -len(inner)])
        task = asyncio.create_task(channel.deliver(take))
        await asyncio.sleep(0)
        assert tap.take is not None
        tap.feed_data(inner)
        await asyncio.wait_for(task, 5)
        assert taken == [LARGE + inner]


async def test_a_cancel_in_the_turn_of_the_last_message_is_not_lost() -> None:
    async with delivering() as (channel, tap):
        task = asyncio.create_task(channel.deliver(lambda message: False))
        await asyncio.sleep(0)
        tap.feed_data(frame(2, b"last", masked=False))
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


async def test_a_delivery_can_go_on_after_its_last_message() -> None:
    async with delivering() as (channel, tap):
        for message in (b"one", LARGE, b"three"):
            taken: list[bytes] = []
            task = asyncio.create_task(channel.deliver(lambda message, taken=taken: bool(taken.append(message))))  # type: ignore[misc]
            await asyncio.sleep(0)
            tap.feed_data(frame(2, message, masked=False))
            await asyncio.wait_for(task, 60)
            assert taken == [message]
        receiving = asyncio.create_task(channel.receive())
        await asyncio.sleep(0)
        tap.feed_data(frame(2, b"four", masked=False))
        assert await asyncio.wait_for(receiving, 60) == b"four"
