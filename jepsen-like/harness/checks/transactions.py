"""Checks transactions: all of one or nothing, in every log and on every page that a reader received.

Of Jepsen's append workload these rules apply: aborted reads, lost and doubled appends (``sends``, entry by entry), and
intermediate reads, which are half transactions here.  Cycles between transactions are impossible: the log is one order,
and a transaction reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.checks.view import Anomaly, FinalRead, Send, View
from harness.values import COMMIT


def half_transactions(view: View) -> Iterator[Anomaly]:
    """Checks whole final logs: a transaction's values are side by side in their order with the COMMIT after them, or
    all are absent."""
    sends = [send for send in view.sends if send.txn]
    for final in [each for each in view.finals if each.whole and sends]:
        yield from _half_in(final, sends)


def _half_in(final: FinalRead, sends: list[Send]) -> Iterator[Anomaly]:
    where = f"final read of {final.node}"
    places = {number: vlsn for vlsn, number in zip(final.page.vlsns, final.page.numbers, strict=True)}
    kept = dict(zip(final.page.vlsns, final.page.numbers, strict=True))
    for send in sends:
        vlsns = [places.get(number) for number in send.numbers]
        there = [vlsn for vlsn in vlsns if vlsn is not None]
        if not there:
            continue
        detail = ""
        if vlsns != list(range(there[0], there[0] + len(vlsns))):
            detail = f"values {send.numbers} of one transaction are at VLSNs {vlsns}"
        elif kept.get(there[-1] + 1) != COMMIT:
            detail = f"values {send.numbers} of one transaction end at VLSN {there[-1]}, and no COMMIT is behind them"
        if detail:
            yield Anomaly("half-transaction", where, detail, there[0], send.numbers[0], send.began / 1e9)


def halves_shown(view: View) -> Iterator[Anomaly]:
    """Checks every page of every reader. Pages are whole blocks, so they show all of a transaction, as far as it is
    after the VLSN from which the reader reads."""
    of = {number: send for send in view.sends if send.txn for number in send.numbers}
    for stream in view.streams if of else ():
        for page in stream.pages:
            shown = set(page.numbers)
            told: set[int] = set()
            for vlsn, number in zip(page.vlsns, page.numbers, strict=True):
                send = of.get(number)
                if send is None or send.numbers[0] in told:
                    continue
                told.add(send.numbers[0])
                first = vlsn - send.numbers.index(number)
                lacks = [
                    each for at, each in enumerate(send.numbers, first) if at >= stream.start and each not in shown
                ]
                if lacks:
                    detail = f"a page shows value {number} of a transaction of {send.numbers}, without {lacks}"
                    yield Anomaly("half-transaction", stream.process, detail, vlsn, number, page.time / 1e9)


CHECKS = (half_transactions, halves_shown)
