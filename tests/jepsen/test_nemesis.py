"""Faults before they strike: the plan from a seed, whom they meet, and the links that they cut."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from harness.command import bytes_per_s, seconds
from harness.group.nodes import Group
from harness.group.watch import Watch
from harness.nemesis.disk import flip_bit, minority, wipe
from harness.nemesis.nemesis import Nemesis
from harness.nemesis.plan import KINDS, LASTS_S_MIN, WAYS, Strike, plan
from harness.nemesis.targets import nodes_hit, pairs_hit
from harness.ops import Recorder, read_history
from hypothesis import given
from hypothesis import strategies as st

from repl.cluster import Cluster, Node, free_base_port
from repl.net.network import AiohttpNetwork
from vlsnlog.testing.callers import owner_of
from vlsnlog.testing.links import PIECE_BYTES_MIN, READ_BYTES, Links, piece_bytes
from vlsnlog.testing.partitions import UNSHAPED, How, Shape

NAMES = {size: [f"n{number}" for number in range(1, size + 1)] for size in (3, 5)}


@given(seed=st.integers(0, 1 << 32), seconds=st.floats(4, 300))
def test_a_plan_strikes_every_kind_early_and_ends_in_time(seed: int, seconds: float) -> None:
    strikes = plan(seed, KINDS, seconds=seconds)
    assert strikes == plan(seed, KINDS, seconds=seconds)
    for kind in KINDS:
        mine = [strike for strike in strikes if strike.kind == kind]
        assert mine[0].at_s < seconds / 3
        assert all(strike.at_s + strike.lasts_s <= seconds for strike in mine)
        assert all(strike.lasts_s >= LASTS_S_MIN for strike in mine)
        ends = [strike.at_s + strike.lasts_s for strike in mine]
        assert all(end <= strike.at_s for end, strike in zip(ends, mine[1:], strict=False)), "one at a time of a kind"


def test_a_long_plan_does_everything_that_there_is() -> None:
    strikes = plan(1, KINDS, seconds=300)
    assert {(strike.kind, strike.way) for strike in strikes} == {(kind, way) for kind in KINDS for way in WAYS[kind]}


@pytest.mark.parametrize("size", [3, 5])
@given(draw=st.integers(0, 1 << 32), master=st.sampled_from(["n1", "n3", None]))
def test_a_fault_meets_as_many_nodes_as_its_way_says(size: int, draw: int, master: str | None) -> None:
    sizes = {"master": 1, "one": 1, "minority": size // 2, "majority": size // 2 + 1, "all": size}
    for way, count in sizes.items():
        hit = nodes_hit(way, NAMES[size], ["n2", "n3"], master, Random(draw))
        assert len(set(hit)) == count
        assert way != "master" or master is None or hit == [master]
        assert way != "one" or hit[0] in ("n2", "n3")
    assert len(minority(NAMES[size], Random(draw))) == size // 2


@pytest.mark.parametrize("size", [3, 5])
@given(draw=st.integers(0, 1 << 32), way=st.sampled_from(WAYS["partition"]))
def test_a_partition_cuts_what_its_way_says(size: int, draw: int, way: str) -> None:
    names = NAMES[size]
    cut = set(pairs_hit(way, names, "n2", Random(draw)))
    assert cut
    assert all(source != target for source, target in cut)
    heard = {name: {other for other in names if (other, name) not in cut} for name in names}
    match way:
        case "one-way":
            assert len(cut) == 1
        case "master-deaf":
            assert heard["n2"] == {"n2"}
            assert all("n2" in heard[name] for name in names)
        case "master-mute":
            assert heard["n2"] == set(names)
            assert all("n2" not in heard[name] for name in names if name != "n2")
        case "ring":
            assert all(len(each) > size // 2 for each in heard.values())
            assert len({frozenset(each) for each in heard.values()}) == size
        case _:
            assert {(target, source) for source, target in cut} == cut
            assert max(len(each) for each in heard.values()) in (size - 1, size // 2 + 1)


def test_one_flipped_bit_is_one_flipped_bit_and_a_wiped_node_keeps_its_settings(tmp_path: Path) -> None:
    directory = tmp_path
    written = bytes(4096) + b"some frames" * 100 + bytes(50_000)
    (directory / "00000001.vlog").write_bytes(written)
    (directory / "00000002.vlog").write_bytes(bytes(60_000))
    (directory / "state").mkdir()
    (directory / "node.toml").write_text("name = 'n1'")
    assert flip_bit(directory, Random(3)).startswith("00000001.vlog byte ")
    changed = (directory / "00000001.vlog").read_bytes()
    bits = [(at, a ^ b) for at, (a, b) in enumerate(zip(written, changed, strict=True)) if a != b]
    assert len(bits) == 1
    assert bits[0][1].bit_count() == 1
    assert wipe(directory)
    assert [each.name for each in directory.iterdir()] == ["node.toml"]
    assert flip_bit(directory, Random(3)) == ""
    assert not wipe(directory)


# Links: the calling node is this process under another name, for the kernel is asked who holds the other end.


@asynccontextmanager
async def linked(shape: Shape = UNSHAPED, *, caller: str = "a") -> AsyncIterator[tuple[Links, int]]:
    """Returns an echo on "b", called through its link by "a", or by the harness; the public port."""
    public, port = (base := free_base_port(2)), base + 1

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", port)
    pids = {caller: os.getpid()} if caller else {}
    links = Links(lambda: pids, own_pid=0 if caller else os.getpid(), shape=shape)
    await links.open("b", public, port)
    try:
        yield links, public
    finally:
        await links.close()
        server.close()


async def answered(reader: asyncio.StreamReader, size: int) -> bytes:
    async with asyncio.timeout(60):
        return await reader.readexactly(size)


async def test_the_kernel_knows_who_called() -> None:
    async with linked() as (_, public):
        _, writer = await asyncio.open_connection("127.0.0.1", public)
        port = writer.get_extra_info("sockname")[1]
        assert owner_of(port, public, [1, os.getpid()]) == os.getpid()
        assert owner_of(port, public, []) is None
        writer.close()
        assert owner_of(1, public, [os.getpid()]) is None


@pytest.mark.parametrize("pair", [("a", "b"), ("b", "a")])
async def test_a_held_direction_goes_on_when_it_is_healed(pair: tuple[str, str]) -> None:
    async with linked() as (links, public):
        reader, writer = await asyncio.open_connection("127.0.0.1", public)
        writer.write(b"one")
        assert await answered(reader, 3) == b"one"
        await links.block([pair], "hold")
        writer.write(b"two")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await reader.readexactly(1)
        assert await links.met([pair]) > 0
        await links.heal([pair])
        assert await answered(reader, 3) == b"two"
        writer.close()


@pytest.mark.parametrize("how", ["cut", "hold"])
async def test_a_cut_link_is_reset_and_a_held_one_may_be_when_it_is_healed(how: How) -> None:
    async with linked() as (links, public):
        reader, writer = await asyncio.open_connection("127.0.0.1", public)
        writer.write(b"one")
        assert await answered(reader, 3) == b"one"
        await links.block([("b", "a")], how)
        if how == "cut":
            assert await links.met([("b", "a")]) == 1
        else:
            writer.write(b"two")
            await links.heal([("b", "a")], cut=True)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await answered(reader, 3)
        if how == "cut":
            reader, writer = await asyncio.open_connection("127.0.0.1", public)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await answered(reader, 1)
            await links.heal([("b", "a")])
        reader, writer = await asyncio.open_connection("127.0.0.1", public)
        writer.write(b"on")
        assert await answered(reader, 2) == b"on"
        writer.close()


async def test_another_pairs_partition_lets_a_link_pass() -> None:
    async with linked() as (links, public):
        await links.block([("a", "c"), ("c", "b")], "cut")
        reader, writer = await asyncio.open_connection("127.0.0.1", public)
        writer.write(b"on")
        assert await answered(reader, 2) == b"on"
        assert await links.met([("a", "c"), ("c", "b")]) == 0
        writer.close()


# Shaped links.  A loaded machine is later than this, never sooner.


async def test_partitions_come_one_at_a_time_also_where_one_is_late(tmp_path: Path) -> None:
    """Each heals its own pairs, and counts what they met."""
    network, recorder = AiohttpNetwork(), Recorder(tmp_path / "history.jsonl")
    nodes = [Node(name, tmp_path / name, "http://127.0.0.1:9") for name in NAMES[3]]
    group = Group(Cluster(tmp_path, nodes, network), Links(dict, own_pid=0))
    nemesis = Nemesis(group, Watch(group.urls, network, recorder), network, recorder, fragile=["n1"])
    await nemesis.run([Strike(at_s=at, lasts_s=0.2, kind="partition", way="halves", draw=1) for at in (0.0, 0.05)])
    recorder.close()
    await network.close()
    noted = [(op.value["id"], op.value["phase"]) for op in read_history(tmp_path / "history.jsonl")]
    assert noted == [(1, "begin"), (1, "end"), (2, "begin"), (2, "end")]


async def test_a_narrow_link_carries_so_many_bytes_a_second_over_all_of_its_connections() -> None:
    async with linked(Shape(bytes_per_s=20_000)) as (_, public):
        began = asyncio.get_running_loop().time()
        ends = [await asyncio.open_connection("127.0.0.1", public) for _ in range(2)]
        for _, writer in ends:
            writer.write(bytes(4_000))
        for reader, _ in ends:
            assert await answered(reader, 4_000) == bytes(4_000)
        took = asyncio.get_running_loop().time() - began
        assert took >= 2 * 4_000 / 20_000, "there; the second one's way back is not counted"
        for _, writer in ends:
            writer.close()


async def test_a_long_link_delays_each_byte_and_keeps_their_order() -> None:
    async with linked(Shape(delay_s=0.15)) as (_, public):
        reader, writer = await asyncio.open_connection("127.0.0.1", public)
        began = asyncio.get_running_loop().time()
        for piece in (b"one ", b"two ", b"three"):
            writer.write(piece)
            await asyncio.sleep(0)
        writer.write_eof()
        assert await answered(reader, 13) == b"one two three"
        assert asyncio.get_running_loop().time() - began >= 2 * 0.15, "there and back"
        assert await reader.read() == b"", "the end comes behind it"
        writer.close()


async def test_what_is_on_a_long_link_is_held_when_the_link_is_blocked() -> None:
    async with linked(Shape(delay_s=0.05)) as (links, public):
        reader, writer = await asyncio.open_connection("127.0.0.1", public)
        writer.write(b"one")
        assert await answered(reader, 3) == b"one"
        await links.block([("b", "a")], "hold")
        writer.write(b"two")
        async with asyncio.timeout(60):
            while not await links.met([("b", "a")]):  # noqa: ASYNC110  the echo is another task's
                await asyncio.sleep(0.01)
        await links.heal([("b", "a")])
        assert await answered(reader, 3) == b"two"
        writer.close()


async def test_the_harness_itself_is_not_slowed_down() -> None:
    async with linked(Shape(bytes_per_s=1_000, delay_s=60.0), caller="") as (_, public):
        reader, writer = await asyncio.open_connection("127.0.0.1", public)
        writer.write(bytes(10_000))
        assert await answered(reader, 10_000) == bytes(10_000)
        writer.close()


def test_a_piece_is_a_tenth_of_a_second_of_its_link() -> None:
    assert piece_bytes(0) == READ_BYTES
    assert piece_bytes(125_000) == 12_500
    assert piece_bytes(1_000) == PIECE_BYTES_MIN
    assert piece_bytes(1e9) == READ_BYTES


@pytest.mark.parametrize(("text", "expected"), [("1mbit", 125_000), ("8bit", 1), ("2.5kbit", 312.5), ("1gbit", 125e6)])
def test_a_rate_is_read_as_tc_writes_it(text: str, expected: float) -> None:
    assert bytes_per_s(text) == expected


def test_what_is_no_rate_and_no_time_is_refused() -> None:
    assert (seconds("100ms"), seconds("2s")) == (0.1, 2.0)
    for wrong in ("", "5", "mbit", "-1mbit", "0mbit", "nanmbit", "1mb", "infmbit"):
        with pytest.raises(ValueError, match=r"a number above 0|could not convert"):
            bytes_per_s(wrong)
    with pytest.raises(ValueError, match="one of ms, s"):
        seconds("5min")
