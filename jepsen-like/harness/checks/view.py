"""A history arranged for checks: appends with their outcomes, readers' streams, final reads, nodes' statuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, Final

from harness.ops import Op
from harness.values import NO_VALUES

EXAMPLES_MAX: Final = 10
NEVER: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A breach of a rule, and its place."""

    rule: str
    where: str
    """A process or node."""
    detail: str
    vlsn: int = 0
    number: int = 0
    seconds: float = 0.0
    """Seconds into the run; 0 if there is no time."""

    def __str__(self) -> str:
        place = f" at VLSN {self.vlsn}" if self.vlsn else ""
        value = f", value {self.number}" if self.number else ""
        when = f", {self.seconds:.3f} s into the run" if self.seconds else ""
        return f"{self.rule} ({self.where}{place}{value}{when}): {self.detail}"


@dataclass(slots=True)
class Found:
    """Anomalies: how many of each rule, and the first few."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[Anomaly]] = field(default_factory=dict)

    def add(self, anomaly: Anomaly) -> None:
        self.counts[anomaly.rule] += 1
        examples = self.examples.setdefault(anomaly.rule, [])
        if len(examples) < EXAMPLES_MAX:
            examples.append(anomaly)

    def __bool__(self) -> bool:
        return bool(self.counts)

    def all(self) -> Iterator[Anomaly]:
        """Yields the examples."""
        return chain.from_iterable(self.examples.values())


@dataclass(frozen=True, slots=True)
class Send:
    """One append.  Without an answer its ``end`` is ``info`` at ``NEVER``; ``first`` is 0 unless it is ``ok``."""

    process: str
    numbers: list[int]
    began: int
    ended: int
    end: str
    first: int = 0
    burst: str = ""
    txn: bool = False
    """True for a transaction: its values, and its COMMIT after them."""

    def places(self) -> Iterator[tuple[int, int]]:
        """Pairs (number, VLSN) of an acknowledged append."""
        return zip(self.numbers, range(self.first, self.first + len(self.numbers)), strict=True)


@dataclass(frozen=True, slots=True)
class Page:
    """Entries in the order in which they were received, as columns."""

    time: int
    vlsns: list[int]
    terms: list[int]
    numbers: list[int]
    dead: list[tuple[int, str, int, int]] = field(default_factory=list)
    """Dead letters among them: their VLSN, the destination, and the message's VLSN and attempts."""

    def entries(self) -> Iterator[tuple[int, int, int]]:
        """Yields (VLSN, term, number) of each entry."""
        return zip(self.vlsns, self.terms, self.numbers, strict=True)


@dataclass(frozen=True, slots=True)
class Stream:
    """The pages that one reader received after one seek."""

    process: str
    start: int
    nodes: list[str] = field(default_factory=list)
    """The nodes that it may ask."""
    pages: list[Page] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Look:
    """One answered linearizable read: it read the log up to VLSN ``to``."""

    process: str
    began: int
    ended: int
    to: int


@dataclass(frozen=True, slots=True)
class FinalRead:
    """A node's final log, read up to ``to``; ``whole`` if that is the requested end."""

    node: str
    to: int
    whole: bool
    page: Page
    first: int = 1
    """The first VLSN that it still has."""
    member: bool = True
    """True for a member at the end of the run. A removed node serves the entries that it has, and is read no
    further."""


@dataclass
class View:
    """A whole history."""

    sends: list[Send] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    finals: list[FinalRead] = field(default_factory=list)
    statuses: list[Op] = field(default_factory=list)
    others: list[Op] = field(default_factory=list)
    errors: list[Op] = field(default_factory=list)
    """Operations of clients that ended with an error."""

    @classmethod
    def of(cls, history: Sequence[Op]) -> View:
        view = cls()
        open_sends: dict[str, Op] = {}
        open_looks: dict[str, Op] = {}
        streams: dict[str, Stream] = {}
        for op in history:
            if op.error and op.type != "ok":
                view.errors.append(op)
            match op.f, op.type:
                case "append", "invoke":
                    if op.process in open_sends:
                        view.sends.append(_send(open_sends[op.process], None))
                    open_sends[op.process] = op
                case "append", _:
                    view.sends.append(_send(open_sends.pop(op.process), op))
                case "seek", "ok":
                    streams[op.process] = Stream(op.process, op.value["from"], op.value.get("nodes", []))
                    view.streams.append(streams[op.process])
                case "poll", "ok":
                    streams[op.process].pages.append(_page(op))
                case "look", "invoke":
                    open_looks[op.process] = op
                case "look", "ok":
                    view.looks.append(Look(op.process, open_looks[op.process].time, op.time, op.value["to"]))
                case "final", "ok" | "info":
                    whole, member = op.type == "ok", op.value.get("member", True)
                    first = op.value.get("first", 1)
                    view.finals.append(FinalRead(op.value["node"], op.value["to"], whole, _page(op), first, member))
                case "status", _:
                    view.statuses.append(op)
                case _:
                    view.others.append(op)
        view.sends += [_send(op, None) for op in open_sends.values()]
        return view

    @cached_property
    def acknowledged(self) -> dict[int, int]:
        """VLSNs by number."""
        return {number: vlsn for send in self.sends if send.end == "ok" for number, vlsn in send.places()}

    @cached_property
    def failed(self) -> set[int]:
        """Numbers whose append failed for good."""
        return {number for send in self.sends if send.end == "fail" for number in send.numbers}

    @cached_property
    def sent(self) -> set[int]:
        return {number for send in self.sends for number in send.numbers}

    @cached_property
    def pages(self) -> list[tuple[str, Page]]:
        """Every page that a reader received, with its reader: polls, then final reads."""
        polled = [(stream.process, page) for stream in self.streams for page in stream.pages]
        return polled + [(f"final read of {final.node}", final.page) for final in self.finals]

    @cached_property
    def seen(self) -> dict[int, int]:
        """Numbers by VLSN, as first received, without the log's own entries."""
        seen: dict[int, int] = {}
        for _, page in self.pages:
            for vlsn, number in zip(page.vlsns, page.numbers, strict=True):
                if number not in NO_VALUES:
                    seen.setdefault(vlsn, number)
        return seen

    @property
    def healed(self) -> bool:
        """True when every member was read to the end."""
        return bool(self.finals) and all(final.whole for final in self.finals if final.member)

    @property
    def members(self) -> set[str] | None:
        """The members at the end of the run, if reported."""
        told = [op.value["members"] for op in self.others if op.f == "members" and "members" in op.value]
        return set(told[-1]) if told else None

    @cached_property
    def highest_read(self) -> int:
        return max((max(page.vlsns) for _, page in self.pages if page.vlsns), default=0)


def _send(invoke: Op, end: Op | None) -> Send:
    numbers: list[int] = invoke.value["numbers"]
    burst: str = invoke.value.get("burst", "")
    txn: bool = invoke.value.get("txn", False)
    if end is None:
        return Send(invoke.process, numbers, invoke.time, NEVER, "info", 0, burst, txn)
    return Send(invoke.process, numbers, invoke.time, end.time, end.type, end.value.get("first", 0), burst, txn)


def _page(op: Op) -> Page:
    value: dict[str, Any] = op.value
    dead = [(at, name, vlsn, attempts) for at, name, vlsn, attempts in value.get("dead", ())]
    return Page(op.time, value["vlsns"], value["terms"], value["numbers"], dead)
