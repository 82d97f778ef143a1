"""Network namespaces between nodes, with sockets of real processes in them; skipped where the machine refuses them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop
from harness.group.namespaces import Namespaces, Refused, shaping
from harness.group.nodes import make_group
from harness.report.progress import Progress
from harness.run import Options, Outcome, _group

from repl.net.network import AiohttpNetwork
from vlsn.errors import BadArgument
from vlsnlog.testing.partitions import UNSHAPED, Pair, Shape

NAMES = ["n1", "n2", "n3"]
PORT = 7000

ECHO = f"""
import socket, threading
server = socket.create_server(("0.0.0.0", {PORT}))
print("listens", flush=True)
def echo(end):
    try:
        while data := end.recv(100):
            end.sendall(data)
    except OSError:
        pass
while True:
    threading.Thread(target=echo, args=(server.accept()[0],), daemon=True).start()
"""

CALLER = f"""
import socket, sys
ends = {{}}
for line in sys.stdin:
    verb, address, data = line.split()
    try:
        if verb == "call":
            ends[address] = socket.create_connection((address, {PORT}), timeout=30)
        elif verb == "try-call":
            socket.create_connection((address, {PORT}), timeout=1).close()
        ends[address].settimeout(0.3 if verb == "try" else 30)
        if verb != "read":
            ends[address].sendall(data.encode())
        print(ends[address].recv(100).decode(), flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
"""


class Caller:
    """A process in a node's namespace that calls others."""

    def __init__(self, spaces: Namespaces, name: str) -> None:
        self._spaces = spaces
        command = [*spaces.launcher(name), sys.executable, "-c", CALLER]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    async def say(self, verb: str, target: str, data: str = "-") -> str:
        """Returns what came back, or the error."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{verb} {self._spaces.address(target)} {data}\n")
        self.process.stdin.flush()
        return (await asyncio.to_thread(self.process.stdout.readline)).strip()


def started_with_output(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


@asynccontextmanager
async def spaces(shape: Shape = UNSHAPED) -> AsyncIterator[tuple[Namespaces, Caller]]:
    """Returns an echo on n2 and on n3, and a caller on n1."""
    try:
        made = await Namespaces.open(NAMES, shape=shape)
    except Refused as refused:
        pytest.skip(str(refused))
    started: list[subprocess.Popen[str]] = []
    try:
        for name in NAMES[1:]:
            command = [*made.launcher(name), sys.executable, "-c", ECHO]
            echo = started_with_output(command)
            started.append(echo)
            assert echo.stdout and await asyncio.to_thread(echo.stdout.readline) == "listens\n"
        caller = Caller(made, "n1")
        started.append(caller.process)
        yield made, caller
    finally:
        for each in started:
            each.kill()
            each.communicate()
        await made.close()


@pytest.mark.real
@pytest.mark.parametrize("pair", [("n1", "n2"), ("n2", "n1")])
async def test_a_held_direction_goes_on_when_it_is_healed(pair: Pair) -> None:
    async with spaces() as (made, caller):
        for target in ("n2", "n3"):
            assert await caller.say("call", target, "one") == "one"
        await made.block([pair], "hold")
        assert await caller.say("try", "n2", "two") == "TimeoutError"
        assert await caller.say("go-on", "n3", "two") == "two"
        assert await made.met([pair]) > 0
        assert await made.met([("n1", "n3")]) == 0
        await made.block([("n1", "n3")], "hold")
        assert await caller.say("try-call", "n3") == "TimeoutError"
        assert await made.met([("n1", "n3")]) > 0
        await made.block([pair, ("n1", "n3")], "hold")  # once more, and the same one of several
        assert await made.met([("n1", "n3")]) == 0, "nothing is tried again that way, as it is the other way"
        await made.heal([("n1", "n3")])
        await made.heal([pair])
        assert await caller.say("read", "n2") == "two"
        assert await made.met([pair]) == 0


@pytest.mark.real
async def test_a_cut_pair_is_reset_and_refused_at_once_and_calls_again_when_healed() -> None:
    async with spaces() as (made, caller):
        for target in ("n2", "n3"):
            assert await caller.say("call", target, "one") == "one"
        await made.block([("n1", "n2")], "cut")
        assert await made.met([("n1", "n2")]) >= 2, "both ends"
        assert await caller.say("try", "n2", "two") == "ConnectionAbortedError"
        assert await caller.say("call", "n2", "two") == "OSError", "network is unreachable"
        assert await caller.say("go-on", "n3", "two") == "two"
        await made.heal()
        assert await caller.say("call", "n2", "three") == "three"


@pytest.mark.real
def test_networks_come_and_go_on_the_loop_that_runs_use() -> None:
    async def main() -> None:
        for _ in range(2):
            async with spaces() as (made, caller):
                await made.block([("n1", "n2"), ("n2", "n3"), ("n3", "n1")], "hold")
                await made.heal()
                assert await caller.say("call", "n2", "one") == "one"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@pytest.mark.real
async def test_connections_that_were_held_may_end_as_they_are_healed() -> None:
    async with spaces() as (made, caller):
        assert await caller.say("call", "n2", "one") == "one"
        await made.block([("n1", "n2"), ("n2", "n1")], "hold")
        assert await caller.say("try", "n2", "two") == "TimeoutError"
        await made.heal([("n1", "n2"), ("n2", "n1")], cut=True)
        assert await caller.say("read", "n2") == "ConnectionAbortedError"


@pytest.mark.real
async def test_nothing_of_a_network_is_left_and_what_a_dead_process_left_is_taken_away() -> None:
    async with spaces() as (made, _):
        addresses = {made.address(name) for name in NAMES}
        assert len(addresses) == 3
        gone = int(output(sys.executable, "-c", "import os; print(os.getpid())"))
        output("ip", "netns", "add", f"vl{gone}-n1")
    other = await Namespaces.open(NAMES)
    try:
        listed = output("ip", "netns", "list")
        assert f"vl{gone}-n1" not in listed
        assert f"vl{os.getpid()}-n1" in listed
    finally:
        await other.close()
    assert f"vl{os.getpid()}" not in output("ip", "netns", "list") + output("ip", "link", "show")


@pytest.mark.real
async def test_what_leaves_a_narrow_node_for_another_one_is_slow_and_for_the_harness_is_not() -> None:
    """A loaded machine is later than this, never sooner."""
    async with spaces(Shape(bytes_per_s=2_000)) as (made, caller):
        loop = asyncio.get_running_loop()
        assert await caller.say("call", "n2", "one") == "one"
        began = loop.time()
        for _ in range(40):  # packets of more than 60 bytes, less what HTB lets pass at once
            assert await caller.say("go-on", "n2", "x" * 80) == "x" * 80
        assert loop.time() - began >= 40 * 140 / 2_000 - 1.0
        shaped = output("tc", "-n", made._space("n1"), "filter", "show", "dev", "eth0")
        addresses = [bytes(map(int, made.address(name).split("."))).hex() for name in NAMES[1:]]
        assert all(f"match {address}/ffffffff" in shaped for address in addresses)
        assert bytes((198, 18, made._subnet, 254)).hex() not in shaped, "the harness is nobody's class"


def test_each_other_node_gets_a_class_of_its_own_whose_queue_is_short() -> None:
    lines = shaping(Shape(bytes_per_s=125_000, delay_s=0.1), {2: "198.18.0.2", 31: "198.18.0.31"})
    assert lines == [
        "qdisc add dev eth0 root handle 1: htb",
        "class add dev eth0 parent 1: classid 1:2 htb rate 1000000bit",
        "qdisc add dev eth0 parent 1:2 handle 12: netem delay 100ms limit 41",
        "filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst 198.18.0.2/32 flowid 1:2",
        "class add dev eth0 parent 1: classid 1:1f htb rate 1000000bit",
        "qdisc add dev eth0 parent 1:1f handle 2f: netem delay 100ms limit 41",
        "filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst 198.18.0.31/32 flowid 1:1f",
    ]
    (_, _, queue, _) = shaping(Shape(bytes_per_s=125_000), {2: "198.18.0.2"})
    assert queue == "qdisc add dev eth0 parent 1:2 handle 12: bfifo limit 50000"


@pytest.mark.real
async def test_a_delay_is_made_in_namespaces_or_by_proxies_and_it_is_said_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = Options(
        workload="append",
        kinds=(),
        nodes=3,
        seconds=2.0,
        seed=1,
        rate=1.0,
        writers=1,
        shape=Shape(125_000, 0.1),
    )
    network = AiohttpNetwork()
    try:
        outcome = Outcome(options)
        group = await _group(outcome, tmp_path / "a", network, Progress())
        await group.close()
        said = capsys.readouterr().out
        assert f"between the nodes: {outcome.between}" in said
        if outcome.between == "proxies":
            assert "namespaces need" in said or "a delay needs a kernel with netem" in said
            with pytest.raises(BadArgument, match="--between namespaces"):
                await _group(
                    Outcome(replace(options, between="namespaces")), tmp_path / "b", network, Progress(quiet=True)
                )
        assert f"vl{os.getpid()}" not in output("ip", "netns", "list")
    finally:
        await network.close()


async def test_a_machine_that_refuses_namespaces_is_named_and_proxies_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    options = Options(workload="append", kinds=(), nodes=3, seconds=2.0, seed=1, rate=1.0, writers=1)
    network = AiohttpNetwork()
    try:
        with pytest.raises(Refused, match="network namespaces need"):
            await make_group(tmp_path / "a", network, nodes=3, settings={}, between="namespaces")
        outcome = Outcome(options)
        group = await _group(outcome, tmp_path / "b", network, Progress())
        await group.close()
    finally:
        await network.close()
    assert outcome.between == "proxies"
    assert "proxies; this machine refuses network namespaces: network namespaces need" in capsys.readouterr().out
