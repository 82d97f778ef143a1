"""The checks of a history: a history in, anomalies out. Pure.

The rules of Jepsen's kafka workload, a VLSN being an offset, and ours, which are stricter: VLSNs have no gap, copies
are equal entry by entry, order holds in real time.

| rule | meaning |
|---|---|
| aborted-read | a value is there whose append failed for good |
| inconsistent-offset | two values, or terms, at one VLSN, in whatever was told or read by anybody |
| lost-write | an acknowledged value that nobody ever reads, at or below the highest VLSN that anybody read |
| unseen | an acknowledged value above all that was read; a reader that does not get to the end |
| duplicate | one value at two VLSNs |
| poll-skip | a reader's next entry is not the next VLSN |
| nonmonotonic-poll | a reader's next entry is not past its last one |
| nonmonotonic-send | an append that was told before another began, or was sent before it, has the higher VLSN |
| torn-append | some values of one append are there, not all, or not side by side |
| half-transaction | the same of a transaction; or without its COMMIT; or a page shows some of its values |
| phantom-read | a value that nobody sent; broken-value: bytes that nobody sent |
| stale-read | a linearizable read does not see what was told to anybody before it began |
| lost-read | what a reader was shown is not in the logs in the end |
| log-gap, term-falls | in a node's log in the end |
| missing | an acknowledged value is not at its VLSN on that node |
| logs-differ | two nodes' logs are not the same |
| two-masters | two nodes lead in one term |
| status-falls | a node's term falls, or its durable end within one life of its process |
| node-ended | a process ended by itself, no fault of its disk being about; node-halted: a node that needs a person |
| node-fault | a traceback in a node's log |
| lost-change | a change of the members that was durable is gone, or the list changed by itself |
| stranger-leads | a node leads in a term later than that in which it was removed |
| lost-message | a durable message of a destination that nobody was given; unsettled-message: nobody could settle it |
| half-delivered | some messages of one transaction came to a destination's consumers, and others did not |
| false-delivery | a message that is not the log's, not durable, or not of the destination |
| redelivered | given to who asked after it was acknowledged durably, or dead |
| out-of-order | given while an earlier message of its key was not settled |
| wrong-attempt | an attempt below 1, or past the last one |
| dead-twice | two dead letters of one message; false-dead-letter: of no message, or not with its attempts |
| dead-though-acknowledged | given up, though acknowledged durably before |

An append whose end is unknown may be there or not, whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from harness.checks import destinations, group, logs, polls, sends, transactions
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
