"""The checks of a recording: records and disks in, anomalies out.  Pure.  A *life* is one process of a consumer.

| rule | meaning |
|---|---|
| cdc-unreadable | a life's file has a line that no consumer writes |
| cdc-not-in-the-log | an event differs from the final log at its VLSN: it was not durable, or is another's |
| cdc-skip | a life did not receive an entry between two received ones, or before its first one |
| cdc-order | an event is not past the event before it |
| cdc-position | a True does not commit the position right after the last received event |
| cdc-begins-ahead | a life begins at a position that no life had promised by then: entries are skipped |
| cdc-falls | a life, or the group's position in the log, is before an earlier one |
| cdc-given-again | a life begins before a stored position: by a node's report, or on the disk of a node just killed |
| cdc-lost-by-a-stop | after a clean stop the position is not the last promised one |
| cdc-unfenced | the group's position was set by a life that had not read the position before it |
| cdc-never-promised | a position in the log or on a disk that no life had promised |
| cdc-two-at-once | a life writes although a later one of the same consumer on the same node has begun |
| cdc-outlives-its-node | a process of a consumer runs although its node is gone |
| cdc-not-given | a consumer never received a durable entry, or its position did not pass that entry |
| cdc-parked | a consumer was parked |
| cdc-logs-differ | two nodes' directories have different entries, or positions |
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from harness.captures.recording import Life, Recording
from harness.checks.view import Anomaly

OUTLIVES_S: Final = 1.0
"""Seconds that the kernel may take to end the child of a killed process, on a busy machine."""
SECOND: Final = 1_000_000_000


def given(recording: Recording) -> Iterator[Anomaly]:
    """Checks each life alone: in order, without a gap, as in the log, each promise right after the last event."""
    log, data = recording.log, recording.log.data
    for life in recording.lives:
        due = bisect_left(data, life.next)
        for call in life.calls:
            for vlsn, term, txn, number in zip(call.vlsns, call.terms, call.txns, call.numbers, strict=True):
                at = call.at / SECOND
                if log.rows.get(vlsn) != (term, number, txn):
                    detail = f"(term, value, transaction) {(term, number, txn)}; the log has {log.rows.get(vlsn)}"
                    yield Anomaly("cdc-not-in-the-log", str(life), detail, vlsn, number, at)
                elif due < len(data) and vlsn > data[due]:
                    yield Anomaly("cdc-skip", str(life), f"VLSN {data[due]} was due", vlsn, number, at)
                elif due == len(data) or vlsn < data[due]:
                    yield Anomaly("cdc-order", str(life), f"before VLSN {data[due - 1] + 1}", vlsn, number, at)
                due = max(due, bisect_right(data, vlsn))
            low = data[due - 1] + 1 if due else 1
            low = max(low, life.next)
            high = data[due] if due < len(data) else max(log.rows, default=0) + 1
            if not low <= call.next <= max(low, high):
                detail = f"a position of {call.next}, behind the event before {low}, the next being {high}"
                yield Anomaly("cdc-position", str(life), detail, call.next, 0, call.at / SECOND)


def beginnings(recording: Recording) -> Iterator[Anomaly]:
    """Checks that each life begins at a position that an earlier life had promised, and never further back."""
    for place, lives in recording.places.items():
        promised = sorted((call.at, call.next) for life in lives for call in life.promises)
        known, at = {lives[0].next}, 0
        begun: dict[int, int] = {}
        for life in lives:
            while at < len(promised) and promised[at][0] <= life.at:
                known.add(promised[at][1])
                at += 1
            if life.next not in known:
                detail = f"nobody had promised {life.next}; the furthest was {max(known)}"
                yield Anomaly("cdc-begins-ahead", str(life), detail, life.next, 0, life.at / SECOND)
            before = _known_to(life, begun)
            if life.next < before:
                detail = f"an earlier life began at {before}"
                yield Anomaly("cdc-falls", str(life), detail, life.next, 0, life.at / SECOND)
            term = 0 if place[1] else life.term
            begun[term] = max(life.next, begun.get(term, 0))


def given_again(recording: Recording) -> Iterator[Anomaly]:
    """Checks that stored entries are not delivered again.  A position that a leader of a later term stored is ignored
    for a life on a node without that term, because what such a life stores is refused."""
    for place, lives in recording.places.items():
        told = sorted(recording.of(place), key=lambda each: each.at)
        stored = [each for each in recording.stored if (each.name, each.node) == place]
        said: dict[int, int] = {}
        at = 0
        for life, earlier in zip(lives, [None, *lives], strict=False):
            while at < len(told) and told[at].at < life.at:
                term = 0 if place[1] else told[at].term
                said[term] = max(told[at].next, said.get(term, 0))
                at += 1
            furthest = _known_to(life, said)
            if life.next < furthest:
                detail = f"begins at {life.next}; {furthest} had been told to be stored"
                yield Anomaly("cdc-given-again", str(life), detail, life.next, 0, life.at / SECOND)
            down = [each for each in stored if (earlier.at if earlier else 0) < each.at < life.at]
            if down and down[-1].next not in (0, life.next):
                detail = f"begins at {life.next}; on the disk of the node that was down lay {down[-1].next}"
                yield Anomaly("cdc-given-again", str(life), detail, life.next, 0, life.at / SECOND)


def _known_to(life: Life, by_term: dict[int, int]) -> int:
    """Returns the furthest position in the terms that the life's node has received; a node's own has term 0."""
    return max((position for term, position in by_term.items() if term <= life.term), default=0)


def files(recording: Recording) -> Iterator[Anomaly]:
    """Checks that position files were promised, and that a cleanly stopped consumer's file has its last promise."""
    for stored in recording.stored:
        lives = [each for each in recording.places.get((stored.name, stored.node), []) if each.at < stored.at]
        if not stored.next:
            if lives:
                yield _stored("cdc-never-promised", stored.node, stored.next, "nothing can be read of it", stored.at)
            continue
        promised = {call.next for life in lives for call in life.promises} | {life.next for life in lives[:1]}
        if lives and stored.next not in promised:
            yield _stored("cdc-never-promised", stored.node, stored.next, "no life had promised it", stored.at)
        if lives and stored.clean and lives[-1].stopped:
            last = lives[-1].promises[-1].next if lives[-1].promises else lives[-1].next
            if stored.next != last:
                detail = f"{lives[-1]} was stopped in peace, and had promised {last}"
                yield _stored("cdc-lost-by-a-stop", stored.node, stored.next, detail, stored.at)


def fenced(recording: Recording) -> Iterator[Anomaly]:
    """Checks the group's positions in the log: they never fall, and the life of each had read the one before."""
    for name, positions in recording.log.positions.items():
        promising: dict[int, set[int]] = {}
        knowing: dict[int, set[int]] = {}
        for number, life in enumerate(recording.places.get((name, ""), [])):
            for call in life.promises:
                promising.setdefault(call.next, set()).add(number)
                knowing.setdefault(call.next, set()).add(number)
            knowing.setdefault(life.next, set()).add(number)
        for (_, before), (vlsn, position) in pairwise(positions):
            if position < before:
                yield Anomaly("cdc-falls", name, f"set to {position}, from {before}", vlsn)
            elif position not in promising:
                yield Anomaly("cdc-never-promised", name, f"set to {position}", vlsn)
            elif promising[position].isdisjoint(knowing.get(before, ())):
                detail = f"set from {before} to {position}, by one who did not know {before}"
                yield Anomaly("cdc-unfenced", name, detail, vlsn)


def one_at_a_time(recording: Recording) -> Iterator[Anomaly]:
    """Checks that a node runs one process of a consumer, and that none outlives its node."""
    for lives in recording.places.values():
        for node in {life.node for life in lives}:
            for life, after in pairwise([life for life in lives if life.node == node]):
                if life.last > after.at:
                    detail = f"still at work {(life.last - after.at) / SECOND:.3f} s after {after} had begun"
                    yield Anomaly("cdc-two-at-once", str(life), detail, 0, 0, life.last / SECOND)
    for life in recording.lives:
        gone = min((each.at for each in recording.stored if each.node == life.node and each.at > life.at), default=0)
        if gone and life.last > gone + OUTLIVES_S * SECOND:
            detail = f"still at work {(life.last - gone) / SECOND:.3f} s after its node was gone"
            yield Anomaly("cdc-outlives-its-node", str(life), detail, 0, 0, life.last / SECOND)
    for pid in recording.left:
        yield Anomaly("cdc-outlives-its-node", str(pid), "it lives, and no node does")


def everything(recording: Recording) -> Iterator[Anomaly]:
    """Checks that every consumer received every entry, and that every position passed the end."""
    due = [vlsn for vlsn in recording.log.data if vlsn <= recording.upto]
    for place, lives in recording.places.items():
        had = {vlsn for life in lives for call in life.calls for vlsn in call.vlsns}
        lacks = [vlsn for vlsn in due if vlsn >= lives[0].next and vlsn not in had]
        where = " on ".join(filter(None, place))
        if lacks:
            yield Anomaly("cdc-not-given", where, f"{len(lacks)} of {len(due)} entries, the first here", lacks[0])
        promised = max((call.next for life in lives for call in life.promises), default=0)
        if due and promised <= due[-1]:
            yield Anomaly("cdc-not-given", where, f"its position got to {promised}, the log goes on to {due[-1]}")


def parked(recording: Recording) -> Iterator[Anomaly]:
    """Checks that no consumer was parked."""
    for told in recording.told:
        if told.state == "parked":
            yield Anomaly("cdc-parked", f"{told.name} on {told.node}", told.reason, told.next, 0, told.at / SECOND)


def logs(recording: Recording) -> Iterator[Anomaly]:
    """Checks that the nodes' directories agree."""
    for node, log in recording.logs.items():
        shared = log.rows.keys() & recording.log.rows.keys()
        apart = next((vlsn for vlsn in sorted(shared) if log.rows[vlsn] != recording.log.rows[vlsn]), 0)
        if apart:
            detail = f"{log.rows[apart]} at its VLSN; another log has {recording.log.rows[apart]}"
            yield Anomaly("cdc-logs-differ", node, detail, apart)
        for name, positions in log.positions.items():
            others = recording.log.positions.get(name, [])
            if positions != others[: len(positions)]:
                yield Anomaly("cdc-logs-differ", node, f"other positions of {name} than another log has")


def unreadable(recording: Recording) -> Iterator[Anomaly]:
    for said in recording.broken:
        yield Anomaly("cdc-unreadable", "recorder", said)


def _stored(rule: str, node: str, position: int, detail: str, at: int) -> Anomaly:
    return Anomaly(rule, node, detail, position, 0, at / SECOND)


Check = Callable[[Recording], Iterable[Anomaly]]
CHECKS: Final[Sequence[Check]] = (
    given,
    beginnings,
    given_again,
    files,
    fenced,
    one_at_a_time,
    everything,
    parked,
    logs,
    unreadable,
)


def check_captures(recording: Recording) -> list[Anomaly]:
    """Runs all checks on a recording."""
    return [anomaly for check in CHECKS for anomaly in check(recording)]


def counts_of(recording: Recording) -> dict[str, int]:
    """Counts the events of a recording; a count of 0 means that this was not tested."""
    switches: dict[tuple[str, str, str], tuple[int, int]] = {}
    for told in recording.told:
        place = (told.node, told.process, told.name)
        before = switches.get(place, (0, 0))
        switches[place] = max(before[0], told.to_buffer), max(before[1], told.to_archive)
    events = sum(len(call.vlsns) for life in recording.lives for call in life.calls)
    distinct = sum(
        len({vlsn for life in lives for call in life.calls for vlsn in call.vlsns})
        for lives in recording.places.values()
    )
    after = [
        life
        for life in recording.lives
        if any(each.node == life.node and each.at < life.at for each in recording.stored)
    ]
    nodes = {life.node for life in recording.lives if life.run_on == "master"}
    return {
        "events given to consumers": events,
        "of them given again": events - distinct,
        "processes of consumers": len(recording.lives),
        "of them behind a kill of a node": len(after),
        "positions promised": sum(len(life.promises) for life in recording.lives),
        "changes to BUFFER": sum(each[0] for each in switches.values()),
        "changes to ARCHIVE": sum(each[1] for each in switches.values()),
        "nodes on which the group's consumer ran": len(nodes),
    }
