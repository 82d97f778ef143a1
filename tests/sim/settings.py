"""The settings with which simulated nodes start: often those of an earlier time, as after an operator's mistake.

A node's `members` are a hint for the first meeting (docs/running.md). A node with a log must find its group with the
list of its first start, or of any time since, at URLs that members have left.  A node without a log starts with the
present members, too.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from repl.config import NodeConfig
from tests.seam.nodes import PORT
from vlsn.ids import NodeName

if TYPE_CHECKING:
    from tests.fakes.machine import Machine
    from tests.sim.group import SimGroup

OLD_RATES = (0.0, 0.5, 0.9)
"""The probabilities that a start has old settings, by the seed."""
FIRST_RATE = 0.6
"""The probability that the old settings are those of the machine's first start."""
Urls = dict[str, str]


class Settings:
    def __init__(self, group: SimGroup, seed: int) -> None:
        self._group = group
        self._rng = Random(f"settings/{seed}")
        self._old_rate = self._rng.choice(OLD_RATES)
        self._first: dict[Machine, int] = {}
        """The index of the list with which each machine was first started."""
        self._lists: list[Urls] = []
        """The successive lists of members in operators' settings."""
        self._ports: dict[str, int] = {}
        self.corrected: set[str] = set()
        """The nodes whose settings an operator has corrected: each of their starts has the present list."""
        self.old = 0
        """The number of starts with an old list."""

    def url(self, name: str) -> str:
        return f"http://{name}:{self._ports.get(name, PORT)}"

    def moves(self, name: str) -> None:
        """Moves a node to a new URL; its old URL stays unused."""
        self._ports[name] = self._ports.get(name, PORT) + 1

    def config(self, told: NodeConfig) -> NodeConfig:
        """Returns ``told``, the settings without a mistake, or the same with an older list."""
        name, url = told.name, self.url(told.name)
        now: Urls = {each: self.url(each) for each in told.members}
        if not self._lists or self._lists[-1] != now:
            self._lists.append(now)
        machine = self._group.machines[name]
        first = self._first.setdefault(machine, len(self._lists) - 1)
        listed = now
        if self._rng.random() < self._old_rate and name not in self.corrected:
            old = self._rng.random() < FIRST_RATE
            listed = self._lists[first if old else self._rng.randrange(first, len(self._lists))]
            if not _has_log(machine, f"/{name}"):
                listed = {**listed, **now}
        self.old += listed != now
        members = {NodeName(each): listed[each] for each in listed}
        members[name] = url
        return replace(told, members=members, listen=url.removeprefix("http://"))


def _has_log(machine: Machine, directory: str) -> bool:
    return any(Path(path).suffix == ".vlog" for path in machine.disk.files(directory))
