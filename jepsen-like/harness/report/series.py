"""The series of the timeline, computed from a history: appends over time, nodes' states, faults. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from harness.ops import Op

BUCKETS_MAX = 200
BUCKET_S_MIN = 0.25
END_STATES = ("ok", "fail", "info")
GONE = "UNREACHABLE"


@dataclass(slots=True)
class Bucket:
    """Appends that ended within one period, by their outcome; ``waits_s`` are those of acknowledged ones."""

    start_s: float
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(END_STATES, 0))
    waits_s: list[float] = field(default_factory=list)

    def wait_s(self, share: float) -> float | None:
        """Returns the wait that ``share`` of them did not exceed; None if none was acknowledged."""
        ordered = sorted(self.waits_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


@dataclass(slots=True)
class Stretch:
    """A period of a node in one state."""

    node: str
    start_s: float
    end_s: float
    state: str
    term: int = 0
    reason: str = ""


@dataclass(slots=True)
class Fault:
    """One fault, from its beginning to its end."""

    number: int
    kind: str
    way: str
    nodes: list[str]
    start_s: float
    end_s: float
    struck: bool = False
    detail: str = ""
    pairs: list[tuple[str, str]] = field(default_factory=list)
    """The blocked pairs of a partition."""


@dataclass(slots=True)
class Series:
    """All series; times in seconds into the run."""

    seconds: float
    bucket_s: float
    buckets: list[Bucket]
    stretches: list[Stretch]
    faults: list[Fault]
    ended: list[Op]
    without_majority: list[tuple[float, float]] = field(default_factory=list)
    """Periods in which no node could reach a majority that answered: nothing could be acknowledged."""


def series_of(history: Sequence[Op]) -> Series:
    last = max((op.seconds for op in history if op.f != "final"), default=0.0)
    bucket_s = max(BUCKET_S_MIN, last / BUCKETS_MAX)
    stretches, faults = _stretches(history, last), _faults(history, last)
    return Series(
        seconds=last,
        bucket_s=bucket_s,
        buckets=_buckets(history, last, bucket_s),
        stretches=stretches,
        faults=faults,
        ended=[op for op in history if op.f == "ended"],
        without_majority=without_majority(stretches, faults, last, electorates(history)),
    )


def electorates(history: Iterable[Op]) -> list[tuple[float, list[str]]]:
    """Lists the nodes with a vote, and the time from which each list holds."""
    return [(op.seconds, op.value["electable"]) for op in history if op.f == "members" and "electable" in op.value]


def without_majority(
    stretches: Sequence[Stretch],
    faults: Sequence[Fault],
    last: float,
    voting: Sequence[tuple[float, list[str]]] = (),
) -> list[tuple[float, float]]:
    """Finds the times without a majority. The history has the nodes that do not answer, are killed or paused, and the
    blocked pairs. Only nodes with a vote then are considered, by default all."""
    names = voting[0][1] if voting else sorted({stretch.node for stretch in stretches})
    spans = [(each.start_s, each.end_s) for each in stretches] + [(each.start_s, each.end_s) for each in faults]
    moments = {0.0, last, *(at for span in spans for at in span), *(at for at, _ in voting)}
    found: list[tuple[float, float]] = []
    for start, end in pairwise(sorted(moments)):
        middle = (start + end) / 2
        names = next((told for at, told in reversed(voting) if at <= middle), names)
        struck = [fault for fault in faults if fault.start_s <= middle < fault.end_s]
        down = {name for fault in struck if fault.kind in ("kill", "pause") for name in fault.nodes}
        down |= {each.node for each in stretches if each.start_s <= middle < each.end_s and each.state == GONE}
        parted = {pair for fault in struck for pair in fault.pairs}
        if names and not _majority_stands(names, down, parted):
            if found and found[-1][1] == start:
                start = found.pop()[0]
            found.append((start, end))
    return found


def _majority_stands(names: Sequence[str], down: set[str], parted: set[tuple[str, str]]) -> bool:
    """Says whether some running node has a majority, itself included, with traffic in both directions."""
    up = [name for name in names if name not in down]
    return any(
        sum(one == other or not {(one, other), (other, one)} & parted for other in up) > len(names) // 2 for one in up
    )


def _buckets(history: Iterable[Op], last: float, bucket_s: float) -> list[Bucket]:
    buckets = [Bucket(at * bucket_s) for at in range(int(last / bucket_s) + 1)]
    began: dict[str, float] = {}
    for op in history:
        if op.f != "append":
            continue
        if op.type == "invoke":
            began[op.process] = op.seconds
            continue
        bucket = buckets[int(op.seconds / bucket_s)]
        bucket.counts[op.type] += 1
        if op.type == "ok":
            bucket.waits_s.append(op.seconds - began[op.process])
    return buckets


def _stretches(history: Iterable[Op], last: float) -> list[Stretch]:
    found: list[Stretch] = []
    open_: dict[str, Stretch] = {}
    for op in history:
        if op.f != "status":
            continue
        node, state, term = op.value["node"], op.value["state"], int(op.value.get("term", 0))
        before = open_.get(node)
        if before is not None:
            before.end_s = op.seconds
            if (before.state, before.term) == (state, term):
                continue
        open_[node] = Stretch(node, op.seconds, last, state, term, str(op.value.get("reason", "")))
        found.append(open_[node])
    for stretch in open_.values():
        stretch.end_s = last
    return found


def _faults(history: Iterable[Op], last: float) -> list[Fault]:
    found: dict[int, Fault] = {}
    for op in history:
        if op.process != "nemesis":
            continue
        number = op.value["id"]
        if op.value["phase"] == "begin":
            detail, pairs = "", [(source, target) for source, target in op.value.get("pairs", [])]
            if op.f == "partition":
                detail = f"{op.value['how']}s " + ", ".join(
                    f"{source}→{target}" for source, target in op.value["pairs"]
                )
            elif op.f == "members":
                detail = op.value["step"]
            elif op.f == "clock":
                detail = ", ".join(f"{name} {offset:+g} s" for name, offset in op.value["offsets"].items())
            found[number] = Fault(number, op.f, op.value["way"], op.value["nodes"], op.seconds, last)
            found[number].detail, found[number].pairs = detail, pairs
        elif number in found:
            fault = found[number]
            fault.end_s, fault.struck = op.seconds, op.value["struck"]
            if "where" in op.value:
                fault.detail = op.value["where"]
            elif "failed" in op.value:
                fault.detail = f"{op.value['failed']} calls failed"
    return list(found.values())
