"""A network of its own for each node, if the machine allows root to create one: partitions drop packets, not bytes.

    harness, clients ─ bridge vlPb 198.18.X.254 ─┬─ veth ─ namespace vlP-n1: eth0 198.18.X.1
                                                 └─ veth ─ namespace vlP-n2: eth0 198.18.X.2        P: our process id

Nodes' URLs are these addresses, the same for members and clients.  A blocked directed pair

    holds   the target drops packets from the source: a rule of its routing says *blackhole*.  TCP sends them again once
            the pair is healed, or gives up
    cuts    the source has no route to the target, so calls fail at once, and existing connections are destroyed on both
            sides

Rules for addresses need no packet filter, so only ``ip``, ``ss`` and ``nsenter`` are needed.  A node's rules come
before its local addresses; its kernel counts the dropped packets (``Ip: InAddrErrors OutNoRoutes``).

A narrow group needs ``tc`` as well: each node has an HTB class for each other node, with a queue of ``QUEUE_S``; the
connection to the harness has none.  A long group needs a kernel with netem.  No share of the packets is dropped.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from typing import Final

from vlsnlog.testing.partitions import UNSHAPED, How, Pair, Shape

SUBNETS: Final = range(256)
"""Subnets of 198.18.0.0/16, which RFC 2544 reserves for tests of networks."""
PROGRAMS: Final = ("ip", "ss", "nsenter")
_OURS: Final = re.compile(r"vl(\d+)(-n\d+|v\d+|b)(@.*)?$")
PACKET_BYTES: Final = 1_514
_BEFORE_LOCAL: Final = 100
_LOCAL: Final = 1000


class Refused(Exception):
    """The machine does not allow it; the message gives the reason."""


class Namespaces:
    """The namespaces of one group. ``open`` makes one."""

    def __init__(self, names: Sequence[str], subnet: int, shape: Shape = UNSHAPED) -> None:
        self._shape = shape
        self._mark = f"vl{os.getpid()}"
        self._names = list(names)
        self._subnet = subnet
        self._blocked: dict[Pair, How] = {}
        self._before: dict[Pair, int] = {}
        self._cut: Counter[Pair] = Counter()
        self._one = asyncio.Lock()
        """A lock, so that the blocked pairs and the kernels' rules change together."""

    @classmethod
    async def open(cls, names: Sequence[str], *, shape: Shape = UNSHAPED) -> Namespaces:
        """Creates the namespaces. Raises ``Refused`` and then removes everything again."""
        if os.geteuid() != 0:
            raise Refused("network namespaces need root")
        needed = (*PROGRAMS, "tc") if shape else PROGRAMS
        if missing := [program for program in needed if shutil.which(program) is None]:
            raise Refused(
                f"network namespaces need {' and '.join(missing)} (Debian, Ubuntu: apt-get install iproute2 util-linux)"
            )
        await _sweep()
        made = cls(names, await _free_subnet(), shape)
        try:
            await made._make()
        except Refused:
            await made.close()
            raise
        return made

    def address(self, name: str) -> str:
        return f"198.18.{self._subnet}.{self._names.index(name) + 1}"

    def launcher(self, name: str) -> tuple[str, ...]:
        """Returns the words to put before a command so that it runs in the node's namespace."""
        return ("nsenter", f"--net=/run/netns/{self._space(name)}")

    async def block(self, pairs: Iterable[Pair], how: How) -> None:
        pairs = list(pairs)
        async with self._one:
            await self._unblock([pair for pair in pairs if pair in self._blocked])
            blocked = dict.fromkeys(pairs, how)
            self._before |= await self._counted(blocked)
            self._blocked |= blocked
            for pair in pairs:
                self._cut[pair] = 0
            await self._rules("add", blocked)
            if how == "cut":
                await self._destroy(pairs)

    async def met(self, pairs: Iterable[Pair]) -> int:
        """Counts the packets that blocked pairs dropped; two pairs with one counting node both have the sum."""
        counted = await self._counted({pair: self._blocked[pair] for pair in pairs if pair in self._blocked})
        return sum(self._cut[pair] + count - self._before[pair] for pair, count in counted.items())

    async def heal(self, pairs: Iterable[Pair] | None = None, *, cut: bool = False) -> None:
        async with self._one:
            healed = [pair for pair in (list(self._blocked) if pairs is None else pairs) if pair in self._blocked]
            if cut:
                await self._destroy(healed)
            await self._unblock(healed)

    async def _unblock(self, pairs: Iterable[Pair]) -> None:
        await self._rules("del", {pair: self._blocked.pop(pair) for pair in pairs})

    async def close(self) -> None:
        """Removes everything that was created, also after a failure."""
        for number, name in enumerate(self._names, 1):
            with suppress(Refused):  # it would be removed some time after its namespace
                await _run("ip", "link", "delete", self._end(number))
            with suppress(Refused):
                await _run("ip", "netns", "delete", self._space(name))
        with suppress(Refused):
            await _run("ip", "link", "delete", self._bridge)

    async def _make(self) -> None:
        await _run("ip", "link", "add", self._bridge, "type", "bridge")
        await _run("ip", "address", "add", f"198.18.{self._subnet}.254/24", "dev", self._bridge)
        await _run("ip", "link", "set", self._bridge, "up")
        for number, name in enumerate(self._names, 1):
            space, end = self._space(name), self._end(number)
            await _run("ip", "netns", "add", space)
            await _run("ip", "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", space)
            await _run("ip", "link", "set", end, "master", self._bridge, "up")
            inside = ("ip", "-n", space)
            await _run(*inside, "address", "add", f"{self.address(name)}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                await _run(*inside, "link", "set", device, "up")
            await _run(*inside, "rule", "add", "pref", str(_LOCAL), "lookup", "local")
            await _run(*inside, "rule", "del", "pref", "0")
            if self._shape:
                await self._shape_links(name)

    async def _shape_links(self, name: str) -> None:
        """Shapes the packets that leave ``name``, for each other node separately."""
        others = {number: self.address(other) for number, other in enumerate(self._names, 1) if other != name}
        lines = shaping(self._shape, others)
        try:
            await _run("tc", "-n", self._space(name), "-batch", "-", said="".join(f"{line}\n" for line in lines))
        except Refused as refused:
            what = "tc could not shape links (a delay needs a kernel with netem, a rate one with HTB)"
            raise Refused(f"{what}: {refused}") from None

    async def _rules(self, verb: str, pairs: Mapping[Pair, How]) -> None:
        """Makes one call for each node whose rules change."""
        lines: dict[str, list[str]] = defaultdict(list)
        for (source, target), how in pairs.items():
            where, words = target, f"from {self.address(source)} iif eth0 blackhole"
            if how == "cut":
                where, words = source, f"to {self.address(target)} unreachable"
            lines[where].append(f"rule {verb} pref {_BEFORE_LOCAL} {words}\n")
        for name, commands in lines.items():
            await _run("ip", "-n", self._space(name), "-batch", "-", said="".join(commands))

    async def _destroy(self, pairs: Iterable[Pair]) -> None:
        """Destroys the TCP connections of these pairs on both sides: a reset would not reach the other end."""
        others: dict[str, dict[str, Pair]] = defaultdict(dict)
        for source, target in pairs:
            others[source][target] = others[target][source] = source, target
        for name, by_other in others.items():
            of_any = " or ".join(f"dst {self.address(other)}" for other in by_other)
            gone = await _run(*self.launcher(name), "ss", "-HK", "-t", f"( {of_any} )")
            for other, pair in by_other.items():
                self._cut[pair] += gone.count(f"{self.address(other)}:")

    async def _counted(self, pairs: Mapping[Pair, How]) -> dict[Pair, int]:
        """Reads how many packets the blocking nodes' kernels have dropped or refused since the start."""
        counters = {
            pair: (pair[1], "InAddrErrors") if how == "hold" else (pair[0], "OutNoRoutes")
            for pair, how in pairs.items()
        }
        names = sorted({name for name, _ in counters.values()})
        tables = await asyncio.gather(*(_run(*self.launcher(name), "cat", "/proc/net/snmp") for name in names))
        counts = {name: _ip_counters(table) for name, table in zip(names, tables, strict=True)}
        return {pair: counts[name][counter] for pair, (name, counter) in counters.items()}

    def _space(self, name: str) -> str:
        return f"{self._mark}-{name}"

    def _end(self, number: int) -> str:
        """Returns the harness's end of the link to the node of that number."""
        return f"{self._mark}v{number}"

    @property
    def _bridge(self) -> str:
        return f"{self._mark}b"


def shaping(shape: Shape, addresses: Mapping[int, str]) -> list[str]:
    """Returns lines for ``tc -batch``: a class by number for the packets to each of ``addresses``."""
    rate = f"{int(shape.bytes_per_s * 8)}bit" if shape.bytes_per_s else "10gbit"
    lines = ["qdisc add dev eth0 root handle 1: htb"]
    for number, address in addresses.items():
        queue = f"bfifo limit {shape.queue_bytes}"
        if shape.delay_s:
            waiting = shape.queue_bytes + shape.bytes_per_s * shape.delay_s
            packets = int(waiting / PACKET_BYTES) if shape.bytes_per_s else 10_000
            queue = f"netem delay {shape.delay_s * 1000:g}ms limit {packets}"
        lines += [
            f"class add dev eth0 parent 1: classid 1:{number:x} htb rate {rate}",
            f"qdisc add dev eth0 parent 1:{number:x} handle {number + 16:x}: {queue}",
            f"filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst {address}/32 flowid 1:{number:x}",
        ]
    return lines


async def _run(*command: str, said: str = "") -> str:
    """Runs a command with ``said`` as its input, and returns its output. Raises ``Refused``."""
    with TemporaryFile() as given:  # the command may close a pipe before it is written
        given.write(said.encode())
        given.seek(0)
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=given, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
        except OSError as error:
            raise Refused(f"{command[0]}: {error.strerror}") from None
        out, errors = await process.communicate()
    if process.returncode != 0:
        raise Refused(f"{' '.join(command)}: {' '.join(errors.decode(errors='replace').split())}")
    return out.decode(errors="replace")


def _ip_counters(table: str) -> dict[str, int]:
    """Parses ``/proc/net/snmp``."""
    words, figures = (line.split()[1:] for line in table.splitlines() if line.startswith("Ip:"))
    return {word: int(figure) for word, figure in zip(words, figures, strict=True)}


async def _free_subnet() -> int:
    used = await _run("ip", "-4", "-o", "address", "show")
    first = os.getpid()
    free = (each % len(SUBNETS) for each in range(first, first + len(SUBNETS)))
    found = next((each for each in free if f" 198.18.{each}." not in used), None)
    if found is None:
        raise Refused("every network of 198.18.0.0/16 is in use here")
    return found


async def _sweep() -> None:
    """Removes namespaces that killed processes have left."""
    spaces = [line.split()[0] for line in (await _run("ip", "netns", "list")).splitlines() if line.strip()]
    links = [line.split()[1].rstrip(":") for line in (await _run("ip", "-o", "link", "show")).splitlines()]
    for name, delete in (*((each, "netns") for each in spaces), *((each, "link") for each in links)):
        ours = _OURS.fullmatch(name)
        if ours is not None and not os.path.exists(f"/proc/{ours[1]}"):
            with suppress(Refused):
                await _run("ip", delete, "delete", name.partition("@")[0])
