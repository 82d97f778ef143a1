"""The checks of a history: a history in, anomalies out. Pure.

The rules are those of Jepsen's kafka workload, with a VLSN as the offset, and stricter ones: VLSNs have no gap, copies
are equal entry by entry, and order holds in real time.

| rule | meaning |
|---|---|
| aborted-read | a value is in the log although its append failed for good |
| inconsistent-offset | one VLSN has two values, or terms, in the acknowledgements and reads |
| lost-write | an acknowledged value that was never read, at or below the highest VLSN that was read |
| unseen | an acknowledged value above all read VLSNs; a reader that does not reach the end |
| duplicate | one value at two VLSNs |
| poll-skip | a reader's next entry is not the next VLSN |
| nonmonotonic-poll | a reader's next entry is not past its last one |
| nonmonotonic-send | an append acknowledged before another began, or sent before it, has the higher VLSN |
| torn-append | some values of one append are in the log, but not all, or not side by side |
| half-transaction | the same for a transaction; or its COMMIT is missing; or a page shows only some of its values |
| phantom-read | a value that was never sent; broken-value: bytes that were never sent |
| stale-read | a linearizable read misses an entry that was acknowledged before it began |
| lost-read | an entry that a reader received is not in the final logs |
| log-gap, term-falls | in a node's final log |
| missing | an acknowledged value is not at its VLSN on that node |
| logs-differ | two nodes' logs differ |
| two-masters | two nodes lead in one term |
| status-falls | a node's term falls, or its durable end falls within one process |
| node-ended | a process ended by itself, without a fault of its disk; node-halted: a node that needs an operator |
| node-fault | a traceback in a node's log |
| lost-change | a durable change of the members is gone, or the list changed without an order |
| stranger-leads | a node leads in a later term than the one in which it was removed |
| lost-message | a durable message of a destination was never delivered; unsettled-message: it was never settled |
| half-delivered | only some messages of one transaction were delivered to a destination's consumers |
| false-delivery | a message that is not the log's, not durable, or not of the destination |
| redelivered | delivered to a request made after it was acknowledged durably, or dead |
| out-of-order | delivered while an earlier message of its key was not settled |
| wrong-attempt | an attempt below 1, or past the last one |
| dead-twice | two dead letters of one message; false-dead-letter: of no message, or with a wrong number of attempts |
| refused | a client was refused for a key, a certificate or a host; member-refused: a member was, by a node's log |
| dead-though-acknowledged | dead-lettered although it was acknowledged durably before |

An append of unknown outcome may be in the log whole, or absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from harness.checks import destinations, group, logs, polls, refusals, sends, transactions
from harness.checks.view import Anomaly, Found, View
from harness.ops import Op

Check = Callable[[View], Iterable[Anomaly]]
CHECKS: Sequence[Check] = (
    *sends.CHECKS,
    *transactions.CHECKS,
    *polls.CHECKS,
    *logs.CHECKS,
    *group.CHECKS,
    *destinations.CHECKS,
    *refusals.CHECKS,
)


def check(history: Sequence[Op]) -> Found:
    """Counts every anomaly of ``history`` by rule."""
    view = View.of(history)
    found = Found()
    for anomaly in chain.from_iterable(_each(view)):
        found.add(anomaly)
    return found


def _each(view: View) -> Iterator[Iterable[Anomaly]]:
    for one in CHECKS:
        yield one(view)


__all__ = ["Anomaly", "Found", "View", "check"]
