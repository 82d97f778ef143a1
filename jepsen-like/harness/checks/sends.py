"""Checks appends: their answers against the reads, and against one another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from harness.checks.view import Anomaly, Send, View
from harness.values import BROKEN, NO_VALUES


def aborted_reads(view: View) -> Iterator[Anomaly]:
    for who, page in view.pages:
        for number in view.failed.intersection(page.numbers):
            vlsn = page.vlsns[page.numbers.index(number)]
            yield Anomaly("aborted-read", who, "its append failed for good", vlsn, number, page.time / 1e9)


def inconsistent_offsets(view: View) -> Iterator[Anomaly]:
    """Compares the entries that readers received with the first reader's."""
    entries: dict[int, tuple[int, int]] = {}
    for who, page in view.pages:
        for vlsn, term, number in page.entries():
            first = entries.setdefault(vlsn, (term, number))
            if first != (term, number):
                detail = f"value {number} of term {term}, elsewhere value {first[1]} of term {first[0]}"
                yield Anomaly("inconsistent-offset", who, detail, vlsn, number, page.time / 1e9)
    told: dict[int, int] = {}
    for send in view.sends:
        if send.end == "ok":
            for number, vlsn in send.places():
                read = entries[vlsn][1] if vlsn in entries else number
                other = told.setdefault(vlsn, number)
                if number not in (read, other) or read != other:
                    detail = f"acknowledged here, but {f'{read} was read' if read != number else f'so was {other}'}"
                    yield Anomaly("inconsistent-offset", send.process, detail, vlsn, number, send.ended / 1e9)


def lost_writes(view: View) -> Iterator[Anomaly]:
    """Finds acknowledged appends that were never read."""
    read = set(view.seen.values())
    for send in view.sends:
        if send.end == "ok":
            for number, vlsn in send.places():
                if number not in read and (view.healed or vlsn <= view.highest_read):
                    rule = "lost-write" if vlsn <= view.highest_read else "unseen"
                    detail = f"acknowledged; the highest VLSN that was read is {view.highest_read}"
                    yield Anomaly(rule, send.process, detail, vlsn, number, send.ended / 1e9)


def duplicates(view: View) -> Iterator[Anomaly]:
    places: dict[int, int] = {}
    told: set[tuple[int, int]] = set()
    for who, page in view.pages:
        for vlsn, number in zip(page.vlsns, page.numbers, strict=True):
            if number in NO_VALUES or number == BROKEN:
                continue
            first = places.setdefault(number, vlsn)
            if first != vlsn and (number, vlsn) not in told:
                told.add((number, vlsn))
                yield Anomaly("duplicate", who, f"also at VLSN {first}", vlsn, number, page.time / 1e9)


def unsent_values(view: View) -> Iterator[Anomaly]:
    for who, page in view.pages:
        for number in set(page.numbers) - view.sent - NO_VALUES:
            vlsn = page.vlsns[page.numbers.index(number)]
            rule = "broken-value" if number == BROKEN else "phantom-read"
            yield Anomaly(rule, who, "nobody sent this", vlsn, max(number, 0), page.time / 1e9)


def nonmonotonic_sends(view: View) -> Iterator[Anomaly]:
    """Checks real time over all writers: an append that began after an acknowledgement has a higher VLSN."""
    acknowledged = sorted((send for send in view.sends if send.end == "ok"), key=lambda send: send.began)
    under_way: list[tuple[int, int]] = []
    highest = 0
    for send in acknowledged:
        while under_way and under_way[0][0] < send.began:
            highest = max(highest, heappop(under_way)[1])
        if send.first <= highest:
            detail = f"an append acknowledged before this one began has VLSN {highest}"
            yield Anomaly("nonmonotonic-send", send.process, detail, send.first, send.numbers[0], send.ended / 1e9)
        heappush(under_way, (send.ended, send.first + len(send.numbers) - 1))


def reordered_bursts(view: View) -> Iterator[Anomaly]:
    """Checks the order of appends that one client sent without waiting between."""
    highest: dict[str, int] = {}
    for send in sorted(view.sends, key=lambda send: (send.began, send.numbers)):
        if send.burst and send.end == "ok":
            if send.first <= highest.get(send.burst, 0):
                detail = f"an append sent before this one has VLSN {highest[send.burst]}"
                yield Anomaly("nonmonotonic-send", send.process, detail, send.first, send.numbers[0], send.ended / 1e9)
            highest[send.burst] = max(highest.get(send.burst, 0), send.first)


def torn_appends(view: View) -> Iterator[Anomaly]:
    """Checks whole final logs: all values of one append are side by side in their order, or none is there."""
    for final in [each for each in view.finals if each.whole]:
        places = {number: vlsn for vlsn, number in zip(final.page.vlsns, final.page.numbers, strict=True)}
        for send in view.sends:  # a block is cleaned as a whole, and an append is in one block
            if len(send.numbers) > 1 and not send.txn:
                yield from _torn(f"final read of {final.node}", send, [places.get(number) for number in send.numbers])


def _torn(who: str, send: Send, vlsns: list[int | None]) -> Iterable[Anomaly]:
    there = [vlsn for vlsn in vlsns if vlsn is not None]
    if there and vlsns != list(range(there[0], there[0] + len(vlsns))):
        detail = f"values {send.numbers} of one append are at VLSNs {vlsns}"
        yield Anomaly("torn-append", who, detail, there[0], send.numbers[0], send.began / 1e9)


CHECKS = (
    aborted_reads,
    inconsistent_offsets,
    lost_writes,
    duplicates,
    unsent_values,
    nonmonotonic_sends,
    reordered_bursts,
    torn_appends,
)
