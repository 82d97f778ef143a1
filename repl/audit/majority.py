"""Two rules of the majority: the block that most copies have is right, and a durable VLSN must be in a majority of the
copies.

    members n1 n2 n3     n1 says: durable up to 90     n1 ends at 95, n2 at 60, n3 at 40
                         a majority had 90 on disk, but now one node has: so n2 or n3 lost entries, and does not lag

A replica that lost entries is distinguished from a replica that lags by two facts. One is the durable end (DTVLSN) that
it once reported, the other is the number of copies that have a VLSN. There is no finding while another explanation is
possible. A member that is not audited may have the entries. A running node may have received more since. A node whose
vote floor (former end of the log) is past the log's end was restored from a shorter copy by a person, and waits for the
entries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from repl.audit.findings import Finding
from repl.audit.members import GroupAt
from vlsn.verify.inspection import Rule

T = TypeVar("T")


def most(votes: Iterable[T]) -> tuple[T, int]:
    """Returns the vote with the most voters, and their number. If two votes have equally many voters, the first one
    wins."""
    return Counter(votes).most_common(1)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The end of one copy: its ``last`` visible VLSN, in a ``file``, and the highest VLSN that it has reported
    (``said``) as durable. ``damaged`` means that something is lost at the end, and that another finding reports the
    loss."""

    source: str
    node: str
    file: str
    last: int
    said: int
    live: bool
    damaged: bool
    owes: bool = False
    """True if the copy's node knows that entries are missing: its vote floor (the log's former end) is past the log's
    end."""


def check_ends(ends: Sequence[End], groups: Sequence[GroupAt]) -> Iterator[Finding]:
    """Reports the copies that end before a VLSN that they must have."""
    for end in ends:
        if end.last < end.said and not end.damaged:
            detail = f"the log ends at VLSN {end.last}, and said that {end.said} was durable"
            yield _shorter(end, end.said, detail)
    durable = max((end.said for end in ends), default=0)
    since = max((group.vlsn for group in groups if group.vlsn <= durable), default=None)
    if since is None:
        return
    # A change of members counts from its entry on. A later group may still have made an earlier VLSN durable.
    counted = [set(group.voters) for group in groups if group.vlsn >= since]
    voters = next(set(group.voters) for group in groups if group.vlsn == since)
    have, seen = {end.node for end in ends if end.last >= durable}, {end.node for end in ends}
    short = [end for end in ends if end.last < durable and end.node in voters]
    lost = all(len(each & have) + len(each - seen) <= len(each) // 2 for each in counted)
    if not lost or any(end.live or end.damaged or end.owes or end.last < end.said for end in short):
        return
    for end in sorted(short, key=lambda end: -end.last)[:1]:
        detail = f"VLSN {durable} was durable on a majority of {len(voters)}, and {len(voters & have)} have it"
        yield _shorter(end, durable, f"{detail}; of those that do not, this one goes furthest")


def _shorter(end: End, durable: int, detail: str) -> Finding:
    return Finding(
        rule=Rule.SHORTER,
        source=end.source,
        file=end.file,
        offset=0,
        vlsn=end.last + 1,
        detail=detail,
        more={"last": end.last, "durable": durable},
    )
