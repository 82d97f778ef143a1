"""The benchmark's group: three nodes with CDC consumers, orders to these, and what a node's process has used."""

from __future__ import annotations

import asyncio
import json
import mmap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from repl.bench.target import Own
from repl.cli.signing import SigningNetwork
from repl.cluster import Node
from tests.bench.cdc_consumers import HEAD
from tests.bench.load import call
from tests.bench.process import environment

SETTLE_S: Final = 60.0


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
            node.environment["PYTHONPATH"] = environment()["PYTHONPATH"]
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

    async def told(self, node: Node, name: str) -> Any:
        return await call(self.network, "GET", f"{node.url}/v1/cdc/{name}")

    async def order(self, node: Node, name: str, what: str, **body: Any) -> None:
        """Gives an order. Raises ``VlsnLogError`` where it is refused."""
        await call(SigningNetwork(self.network), "POST", f"{node.url}/v1/cdc/{name}/{what}", body)

    async def state(self, node: Node, name: str, *states: str) -> None:
        """Waits until a consumer is in one of these states."""
        await self._until(node, name, lambda told: told["state"] in states, f"not {states}")

    async def caught_up(self, node: Node, *names: str) -> None:
        """Waits until these have taken all that is durable."""
        for name in names:
            await self._until(node, name, lambda told: told["lag_vlsns"] == 0, "not at the end")

    async def _until(self, node: Node, name: str, holds: Callable[[dict[str, Any]], bool], what: str) -> None:
        end = time.perf_counter() + SETTLE_S
        while not holds(told := await self.told(node, name)):
            if time.perf_counter() > end:
                raise RuntimeError(f"{name} on {node.name} is {what}: {told}")
            await asyncio.sleep(0.02)
