"""Checks deliveries and acknowledgements of destinations' consumers against the log that readers received.

A message is an entry of the log whose key has the destination's prefix; its id is its VLSN.  A request without an
answer may have succeeded. An acknowledgement forbids a redelivery once its answer has arrived; it allows the next
message of a key as soon as it was sent.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from harness.checks.view import NEVER, Anomaly, View
from harness.ops import Op
from harness.values import key_of


@dataclass(frozen=True, slots=True)
class Given:
    """One page of messages: requested at ``began``, received at ``ended``."""

    process: str
    began: int
    ended: int
    vlsns: list[int]
    attempts: list[int]
    numbers: list[int]


@dataclass(frozen=True, slots=True)
class Dead:
    """One dead letter, at VLSN ``at`` of the log: message ``vlsn`` was dead-lettered after ``attempts``."""

    at: int
    vlsn: int
    attempts: int
    time: int
    """The time when a reader first received it."""


@dataclass
class Destination:
    """Everything known about one destination."""

    name: str
    prefix: str
    start: int
    attempts_max: int
    log: dict[int, int]
    """Numbers by VLSN of the whole log, as readers received it."""
    given: list[Given] = field(default_factory=list)
    sent: dict[int, int] = field(default_factory=dict)
    """The time when an acknowledgement of a VLSN that was not refused was first sent."""
    refused: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """The times when acknowledgements of a VLSN were sent and refused."""
    settled: dict[int, int] = field(default_factory=dict)
    """The time when a durable acknowledgement was first answered."""
    dead: dict[int, Dead] = field(default_factory=dict)
    """Dead letters by their own VLSN."""
    drained_to: int = 0
    """At the end of the run everything up to this VLSN had to be delivered."""

    def takes(self, vlsn: int, number: int) -> bool:
        return number > 0 and vlsn >= self.start and key_of(number).decode().startswith(self.prefix)

    @cached_property
    def messages(self) -> dict[int, int]:
        """Numbers by VLSN, in the order of the log."""
        return {vlsn: number for vlsn, number in sorted(self.log.items()) if self.takes(vlsn, number)}

    @cached_property
    def given_up(self) -> dict[int, Dead]:
        """The first dead letter of each message."""
        return {each.vlsn: each for _, each in sorted(self.dead.items(), reverse=True)}

    @cached_property
    def told(self) -> set[int]:
        return {vlsn for page in self.given for vlsn in page.vlsns}


def destinations(view: View) -> list[Destination]:
    """Arranges the destinations by name; empty if a run has none."""
    made: dict[str, Destination] = {}
    began: dict[str, int] = {}
    log = {vlsn: number for _, page in view.pages for vlsn, number in zip(page.vlsns, page.numbers, strict=True)}
    for op in view.others:
        if op.f == "destination":
            value = op.value
            made[value["name"]] = Destination(value["name"], value["prefix"], value["from"], value["attempts_max"], log)
        elif op.f in ("deliver", "ack", "nack", "drained"):
            if op.type == "invoke":
                began[op.process] = op.time
            _take(made[op.value["destination"]], op, began.get(op.process, op.time))
    for _, page in sorted(view.pages, key=lambda shown: shown[1].time):
        for at, name, vlsn, attempts in page.dead:
            if name in made:
                made[name].dead.setdefault(at, Dead(at, vlsn, attempts, page.time))
    return list(made.values())


def _take(destination: Destination, op: Op, began: int) -> None:
    value = op.value
    match op.f, op.type:
        case "deliver", "ok":
            page = Given(op.process, began, op.time, value["vlsns"], value["attempts"], value["numbers"])
            destination.given.append(page)
        case "ack", "fail":
            for vlsn in value["vlsns"]:
                destination.refused.setdefault(vlsn, []).append((began, op.time))
        case "ack", "ok" | "info":
            for vlsn in value["vlsns"]:
                destination.sent[vlsn] = min(destination.sent.get(vlsn, NEVER), began)
                if op.type == "ok" and value.get("wait", True):
                    destination.settled.setdefault(vlsn, op.time)
        case "drained", _:
            destination.drained_to = value["to"]


def nothing_lost(view: View, every: list[Destination]) -> Iterator[Anomaly]:
    """Checks that each durable message was delivered, and in the end acknowledged or dead-lettered."""
    for each in every:
        for vlsn, number in each.messages.items():
            if vlsn > each.drained_to or vlsn in each.given_up:
                continue
            if vlsn not in each.told:
                yield Anomaly("lost-message", each.name, "nobody was ever given it", vlsn, number)
            elif vlsn not in each.sent:
                yield Anomaly("unsettled-message", each.name, "given, and never again to be settled", vlsn, number)


def whole_transactions(view: View, every: list[Destination]) -> Iterator[Anomaly]:
    """Checks that all messages of a transaction were delivered or dead-lettered, or none. It names a lost part of a
    transaction more precisely than the other rules."""
    sends = [send for send in view.sends if send.txn]
    for each in every:
        places = {number: vlsn for vlsn, number in each.messages.items()}
        for send in sends:
            vlsns = [places[number] for number in send.numbers if number in places]
            known = [vlsn for vlsn in vlsns if vlsn in each.told or vlsn in each.given_up]
            if known and len(known) < len(vlsns) and vlsns[-1] <= each.drained_to:
                detail = f"of the transaction of {send.numbers} those at {sorted(set(vlsns) - set(known))} never came"
                yield Anomaly("half-delivered", each.name, detail, known[0], send.numbers[0], send.began / 1e9)


def only_what_the_log_has(view: View, every: list[Destination]) -> Iterator[Anomaly]:
    """Checks that delivered messages are durable, of the destination, and the log's own values."""
    for each in every:
        end = max(each.log, default=0)
        for page in each.given:
            for vlsn, number in zip(page.vlsns, page.numbers, strict=True):
                logged = each.log.get(vlsn)
                detail = ""
                if number in view.failed:
                    detail = "its append failed for good"
                elif logged is None and vlsn > end:
                    detail = f"the log that was read ends at VLSN {end}"
                elif logged is not None and logged != number:
                    detail = f"the log has value {logged} there"
                elif not each.takes(vlsn, number):
                    detail = f"no message of the prefix {each.prefix!r} from VLSN {each.start} on"
                if detail:
                    yield Anomaly("false-delivery", page.process, detail, vlsn, max(number, 0), page.ended / 1e9)


def not_given_again(view: View, every: list[Destination]) -> Iterator[Anomaly]:
    """Checks that a page has no message that was durably acknowledged, or dead, before the page was requested."""
    for each in every:
        for page in each.given:
            for vlsn, number in zip(page.vlsns, page.numbers, strict=True):
                if each.settled.get(vlsn, NEVER) < page.began:
                    detail = f"acknowledged durably at {each.settled[vlsn] / 1e9:.3f} s, asked for after that"
                    yield Anomaly("redelivered", page.process, detail, vlsn, number, page.ended / 1e9)
                letter = each.given_up.get(vlsn)
                if letter is not None and letter.time < page.began:
                    detail = f"its dead letter was read at {letter.time / 1e9:.3f} s, asked for after that"
                    yield Anomaly("redelivered", page.process, detail, vlsn, number, page.ended / 1e9)


def order_in_a_key(view: View, every: list[Destination]) -> Iterator[Anomaly]:
    """Checks that a message is delivered only when the earlier ones of its key are settled, or come before it in the
    same page."""
    for each in every:
        of_key: dict[bytes, list[int]] = defaultdict(list)
        for vlsn, number in each.messages.items():
            of_key[key_of(number)].append(vlsn)
        first_open: Counter[bytes] = Counter()
        for page in sorted(each.given, key=lambda page: page.ended):
            yield from _order_in(each, page, of_key, first_open)


def _order_in(
    each: Destination, page: Given, of_key: dict[bytes, list[int]], first_open: Counter[bytes]
) -> Iterator[Anomaly]:
    here: dict[bytes, list[int]] = defaultdict(list)
    for vlsn, number in zip(page.vlsns, page.numbers, strict=True):
        if each.messages.get(vlsn) != number:
            continue  # a false delivery
        key = key_of(number)
        vlsns = of_key[key]
        while first_open[key] < len(vlsns) and _is_settled(each, vlsns[first_open[key]], page.ended):
            first_open[key] += 1
        open_ = vlsns[first_open[key] : bisect_left(vlsns, vlsn)]
        others = (at for at in open_ if at not in here[key])
        before = next(
            (at for at in others if not (_is_settled(each, at, page.ended) or _is_asked(each, at, page))), None
        )
        if before is not None:
            detail = f"VLSN {before} of the same key, {key.decode()!r}, was not settled"
            yield Anomaly("out-of-order", page.process, detail, vlsn, number, page.ended / 1e9)
        elif here[key] and here[key][-1] >= vlsn:
            detail = f"behind VLSN {here[key][-1]} of the same key, in one page"
            yield Anomaly("out-of-order", page.process, detail, vlsn, number, page.ended / 1e9)
        here[key].append(vlsn)


def _is_settled(each: Destination, vlsn: int, time: int) -> bool:
    """Says whether a message is settled at ``time``. The exact time of a dead letter is unknown, so it is settled."""
    return each.sent.get(vlsn, NEVER) < time or vlsn in each.given_up


def attempts_counted(view: View, every: list[Destination]) -> Iterator[Anomaly]:
    for each in every:
        for page in each.given:
            for vlsn, attempt, number in zip(page.vlsns, page.attempts, page.numbers, strict=True):
                if attempt < 1 or (each.attempts_max and attempt > each.attempts_max):
                    detail = f"attempt {attempt} of at most {each.attempts_max}"
                    yield Anomaly("wrong-attempt", page.process, detail, vlsn, number, page.ended / 1e9)


def dead_letters(view: View, every: list[Destination]) -> Iterator[Anomaly]:
    """Checks that a dead message has one dead letter, with its attempts, and was not acknowledged before."""
    ends = sorted((send.began, send.first) for send in view.sends if send.end == "ok")
    begins = [began for began, _ in ends]
    lowest = [NEVER] * (len(ends) + 1)
    for at in range(len(ends) - 1, -1, -1):
        lowest[at] = min(ends[at][1], lowest[at + 1])
    for each in every:
        count = Counter(letter.vlsn for letter in each.dead.values())
        for vlsn, letters in count.items():
            if letters > 1:
                yield Anomaly("dead-twice", each.name, f"{letters} dead letters name it", vlsn)
        for letter in each.dead.values():
            where, seconds = f"dead letter at VLSN {letter.at}", letter.time / 1e9
            known = each.log.get(letter.vlsn)
            if letter.vlsn >= letter.at or (known is not None and letter.vlsn not in each.messages):
                yield Anomaly("false-dead-letter", where, f"no message of {each.name}", letter.vlsn, 0, seconds)
            if letter.attempts != each.attempts_max:
                detail = f"given up after {letter.attempts} attempts, not {each.attempts_max}"
                yield Anomaly("false-dead-letter", where, detail, letter.vlsn, 0, seconds)
            settled = each.settled.get(letter.vlsn, NEVER)
            # An append that began after the answer to the acknowledgement comes after it in the log.
            if letter.at > lowest[bisect_right(begins, settled)]:
                detail = f"acknowledged durably at {settled / 1e9:.3f} s, before that was logged"
                yield Anomaly("dead-though-acknowledged", where, detail, letter.vlsn, 0, seconds)


def kept_their_word(view: View) -> Iterator[Anomaly]:
    """Runs all checks of destinations."""
    every = destinations(view)
    for one in _EACH if every else ():
        yield from one(view, every)


_EACH = (
    nothing_lost,
    whole_transactions,
    only_what_the_log_has,
    not_given_again,
    order_in_a_key,
    attempts_counted,
    dead_letters,
)
CHECKS = (kept_their_word,)


def _is_asked(each: Destination, vlsn: int, page: Given) -> bool:
    """Says whether an acknowledgement may have been received: it releases later messages of its key at once, also if
    the master refuses it as its term ends."""
    return any(began < page.ended and page.began < ended for began, ended in each.refused.get(vlsn, ()))
