"""The benchmark's group: three nodes with CDC consumers, orders to these, and what a node's process has used."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from repl.bench.cdc.consumers import HEAD
from repl.bench.target import Own
from repl.cluster import Node

SETTLE_S: Final = 60.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Seen:
    """The counts of a ``Counts`` consumer."""

    entries: int
    last: int
    began_ns: int
    now_ns: int


class CdcGroup(Own):
    """``tables``: by name the consumers that each node has, with the settings of their tables.  In these, ``{node}``
    stands for the node's name; ``counts`` of their options is a file in the node's directory."""

    def __init__(self, settings: Mapping[str, str | int | float], tables: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(settings)
        self._tables = tables

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        for node in self.cluster.nodes:
            for name in self._tables:
                await self.state(node, name, "running", "backoff", "starting", "parked")
        return self

    def prepared(self) -> None:
        """Writes the tables of the consumers behind what the nodes' config files have."""
        for node in self.cluster.nodes:
            with node.config_path.open("a") as file:
                for name, table in self._tables.items():
                    options = {**table.get("options", {}), "counts": str(self._counts(node, name))}
                    file.write(f"\n[[cdc]]\nname = {json.dumps(name)}\n")
                    for key, value in table.items():
                        if key != "options":
                            file.write(f"{key} = {json.dumps(value)}\n")
                    file.write(
                        "options = { " + ", ".join(f"{k} = {json.dumps(v)}" for k, v in options.items()) + " }\n"
                    )

    def _counts(self, node: Node, name: str) -> Path:
        return self.directory / f"{node.name}-{name}.counts"

    def seen(self, node: Node, name: str) -> Seen:
        path = self._counts(node, name)
        if not path.exists() or path.stat().st_size < HEAD.size:
            return Seen(0, 0, 0, 0)
        with path.open("rb") as file, mmap.mmap(file.fileno(), HEAD.size, prot=mmap.PROT_READ) as mapped:
            return Seen(*HEAD.unpack_from(mapped))

    def stamps(self, node: Node, name: str) -> bytes:
        return self._counts(node, name).read_bytes()[HEAD.size :]

    async def told(self, node: Node, name: str) -> dict[str, Any]:
        return await self._call("GET", f"{node.url}/v1/cdc/{name}")

    async def order(self, node: Node, name: str, what: str, **body: Any) -> dict[str, Any]:
        """Gives an order. Raises ``RuntimeError`` where it is refused."""
        return await self._call("POST", f"{node.url}/v1/cdc/{name}/{what}", body)

    async def _call(self, method: str, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        response = await self._network.request(
            method,
            url,
            headers={"Content-Type": "application/json"} if body is not None else {},
            body=json.dumps(body).encode() if body is not None else b"",
            timeout_s=60.0,
        )
        answer: dict[str, Any] = json.loads(bytes(response.body))
        if response.status != 200:
            raise RuntimeError(f"{url}: {answer}")
        return answer

    async def state(self, node: Node, name: str, *states: str) -> dict[str, Any]:
        """Waits until a consumer is in one of these states."""
        end = time.perf_counter() + SETTLE_S
        while (told := await self.told(node, name))["state"] not in states:
            if time.perf_counter() > end:
                raise RuntimeError(f"{name} on {node.name} is {told['state']}, not {states}: {told['reason']}")
            await asyncio.sleep(0.02)
        return told

    async def caught_up(self, node: Node, *names: str) -> None:
        """Waits until these have taken all that is durable."""
        end = time.perf_counter() + SETTLE_S
        for name in names:
            while (told := await self.told(node, name))["lag_vlsns"] != 0:
                if time.perf_counter() > end:
                    raise RuntimeError(f"{name} on {node.name} does not catch up: {told}")
                await asyncio.sleep(0.02)


def cpu_s(node: Node) -> float:
    """Reads the processor time of the node's own process, without its children."""
    fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
