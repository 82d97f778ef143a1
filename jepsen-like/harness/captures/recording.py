"""A run's recording: the consumers' own records, the nodes' reports of them, and the disks in the end.

lives       the processes of consumers, in the order of their starts
told        the nodes' reports in their status: position, mode, state         history, ``cdc``
stored      a position file of a node that had just been killed, or stopped   history, ``position``
logs        the final logs in the nodes' directories
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from harness.captures.disk_log import DiskLog
from harness.ops import Op


@dataclass(frozen=True, slots=True)
class Call:
    """One call of ``on_events``.  ``next`` is the position that True commits; times are in ns since the run began."""

    at: int
    vlsns: list[int]
    terms: list[int]
    txns: list[int]
    numbers: list[int]
    next: int
    said: bool


@dataclass(slots=True)
class Life:
    """One process of a consumer, from its start to its end."""

    name: str
    node: str
    run_on: str
    next: int
    """The position at which it began."""
    term: int
    pid: int
    parent: int
    at: int
    calls: list[Call] = field(default_factory=list)
    stopped: int = 0
    """The time at which it was asked to stop; 0 if it was not."""

    @property
    def place(self) -> tuple[str, str]:
        """The consumer, and the node with its position; the node is empty if the group has the position."""
        return self.name, "" if self.run_on == "master" else self.node

    @property
    def last(self) -> int:
        """The time of its last record."""
        return max([self.at, self.stopped, *(call.at for call in self.calls[-1:])])

    @property
    def promises(self) -> list[Call]:
        return [call for call in self.calls if call.said]

    def __str__(self) -> str:
        return f"{self.name} on {self.node}, process {self.pid}"


@dataclass(frozen=True, slots=True)
class Told:
    """A node's report on one consumer, from its status."""

    at: int
    node: str
    process: str
    term: int
    name: str
    state: str
    reason: str
    next: int
    mode: str
    to_buffer: int
    to_archive: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A position file's content while its node was down.  ``clean`` means that the node had exited with status 0."""

    at: int
    node: str
    name: str
    next: int
    clean: bool


@dataclass
class Recording:
    """The whole recording.  ``upto`` is the VLSN that every consumer had to pass, 0 if the group did not heal."""

    lives: list[Life] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """Files of lives that are empty, or have a line that no consumer writes."""
    told: list[Told] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    """Processes of consumers that ran when no node did."""
    logs: dict[str, DiskLog] = field(default_factory=dict)
    upto: int = 0

    @cached_property
    def places(self) -> dict[tuple[str, str], list[Life]]:
        found: dict[tuple[str, str], list[Life]] = {}
        for life in self.lives:
            found.setdefault(life.place, []).append(life)
        return found

    @cached_property
    def log(self) -> DiskLog:
        """The longest log; a check compares the others with it."""
        return max(self.logs.values(), key=lambda log: len(log.rows), default=DiskLog())

    def of(self, place: tuple[str, str]) -> Iterator[Told]:
        """Yields the nodes' reports on one consumer at one place."""
        return (told for told in self.told if told.name == place[0] and place[1] in ("", told.node))


def recording_of(
    history: Sequence[Op], folder: Path, began_ns: int, logs: dict[str, DiskLog], *, upto: int
) -> Recording:
    """Reads the files in ``folder``, and the history's entries about consumers."""
    found = Recording(logs=logs, upto=upto)
    for path in sorted(folder.glob("*.jsonl")):
        life = _life_of(path, began_ns, found.broken)
        if life is not None:
            found.lives.append(life)
    found.lives.sort(key=lambda life: life.at)
    for op in history:
        match op.f:
            case "cdc":
                found.told += _told(op)
            case "position":
                value = op.value
                found.stored.append(Stored(op.time, value["node"], value["name"], value["next"], value["clean"]))
            case "left":
                found.left += op.value["pids"]
    return found


def _told(op: Op) -> Iterator[Told]:
    for each in op.value["consumers"]:
        switches = each["switches"]
        yield Told(
            op.time,
            op.value["node"],
            op.value["process"],
            op.value["term"],
            each["name"],
            each["state"],
            each["reason"],
            each["next"] or 0,
            each["mode"] or "",
            switches["to_buffer"],
            switches["to_archive"],
        )


def _life_of(path: Path, began_ns: int, broken: list[str]) -> Life | None:
    """Reads one life.  A last line without its end was being written when the process was killed, so its call had no
    answer."""
    *lines, _ = path.read_bytes().split(b"\n")
    if not lines:
        return None
    try:
        start, *rest = [json.loads(line) for line in lines]
        life = Life(
            name=start["name"],
            node=start["node"],
            run_on=start["run_on"],
            next=start["next"],
            term=start["term"],
            pid=start["pid"],
            parent=start["parent"],
            at=start["at"] - began_ns,
        )
        for line in rest:
            at = line["at"] - began_ns
            if line["f"] == "stop":
                life.stopped = at
            else:
                vlsns, terms, txns, numbers = (line[name] for name in ("vlsns", "terms", "txns", "numbers"))
                life.calls.append(Call(at, vlsns, terms, txns, numbers, line["next"], line["said"]))
    except (ValueError, KeyError, TypeError) as error:
        broken.append(f"{path.name}: {type(error).__name__} {error}")
        return None
    return life
