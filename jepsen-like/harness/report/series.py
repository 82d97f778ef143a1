"""What the timeline shows, taken from a history: appends by moment, nodes' states, faults.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from harness.ops import Op

BUCKETS_MAX = 200
BUCKET_S_MIN = 0.25
END_STATES = ("ok", "fail", "info")


@dataclass(slots=True)
class Bucket:
    """Appends that ended within one stretch of time, by their end; ``waits_s`` of those acknowledged."""

    start_s: float
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(END_STATES, 0))
    waits_s: list[float] = field(default_factory=list)

    def wait_s(self, share: float) -> float | None:
        """The wait that ``share`` of them did not exceed; None where nothing was acknowledged."""
        ordered = sorted(self.waits_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


@dataclass(slots=True)
class Stretch:
    """A node in one state."""

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


@dataclass(slots=True)
class Series:
    """All of it; times in seconds into the run."""

    seconds: float
    bucket_s: float
    buckets: list[Bucket]
    stretches: list[Stretch]
    faults: list[Fault]
    ended: list[Op]


def series_of(history: Sequence[Op]) -> Series:
    last = max((op.seconds for op in history if op.f != "final"), default=0.0)
    bucket_s = max(BUCKET_S_MIN, last / BUCKETS_MAX)
    return Series(
        seconds=last,
        bucket_s=bucket_s,
        buckets=_buckets(history, last, bucket_s),
        stretches=_stretches(history, last),
        faults=_faults(history, last),
        ended=[op for op in history if op.f == "ended"],
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
            detail = ""
            if op.f == "partition":
                detail = f"{op.value['how']}s " + ", ".join(
                    f"{source}→{target}" for source, target in op.value["pairs"]
                )
            elif op.f == "clock":
                detail = ", ".join(f"{name} {offset:+g} s" for name, offset in op.value["offsets"].items())
            found[number] = Fault(number, op.f, op.value["way"], op.value["nodes"], op.seconds, last, detail=detail)
        elif number in found:
            fault = found[number]
            fault.end_s, fault.struck = op.seconds, op.value["struck"]
            if "where" in op.value:
                fault.detail = op.value["where"]
            elif "failed" in op.value:
                fault.detail = f"{op.value['failed']} calls failed"
    return list(found.values())
