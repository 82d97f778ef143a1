"""The report of a seed, and of all seeds, with the minimums that a run must reach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rich.table import Table

VIRTUAL_S_MIN = 60.0
OPERATIONS_MIN = 300
FAULTS_MIN = 5
KINDS_MIN = 3
CHANGES_FRACTION_MIN = 0.9
"""The share of the seeds that see at least one change of master."""
COMMON, SELDOM, RARE = 20, 50, 200
STRUCK = {
    **dict.fromkeys(
        (
            *("kill", "power cut", "kill at an await", "pause", "clock", "everything dies", "stop inside recovery"),
            *(
                "stop at a disk call",
                "stop inside a checkpoint",
                "failed write",
                "failed sync",
                *("failed write of the node file", "failed commit", "failed read at a start"),
                "full disk",
                "slow disk",
                "stalled disk",
            ),
            *(
                "split",
                "one way",
                "cut off for long",
                "mute",
                "half heard",
                "deaf",
                "no lead lasts",
                "slow link",
                "messages outlive their process",
            ),
            *(
                "cut connection",
                "lossy network",
                "stranger",
                "transfer",
                "priority changed",
                "member added",
                "two changes at once",
                "flipped bit",
            ),
        ),
        COMMON,
    ),
    **dict.fromkeys(
        (
            *("stop inside a rollback", "stop inside a mending", "flipped bit, of each block on a minority"),
            *("wiped", "old disk", "node file lost", "node file slot flipped"),
            *("index lost", "index flipped", "index unreadable", "state lost", "state unreadable"),
            *("master's disk stalled", "secondary added", "member removed", "provider cleans", "provider restarts"),
            *("last block rots", "heir stands still", "ends behind its last word"),
            *("alone with a list", "cut by a person"),
            *("absent while the list changes", "two restored by people at once"),
            *("failed read of a sidecar", "failed reads"),
        ),
        SELDOM,
    ),
    **dict.fromkeys(
        (
            *("node file older", "node file flipped", "index older", "state older", "state flipped"),
            *("secondary promoted", "provider rolls back", "alone with clients"),
            *("restored by a person", "restored from one with less", "old disk, of who led to tell"),
        ),
        RARE,
    ),
}
"""Every kind of fault; a run must have it with an effect at least once in this number of seeds."""
MET = {
    "a crash inside recovery": COMMON,
    "a crash inside a mending": SELDOM,
    "a crash inside a restore": RARE,
    "a restore on request": SELDOM,
    "a restore on request refused": SELDOM,
    "a crash inside a rollback": 2 * RARE,
    "a crash of the provider of a restore": RARE,
    "a rollback at the provider of a restore": 2 * RARE,
    "a cleaning at the provider of a restore": RARE,
    "a message from a process that has ended, or to its next one": 1,
    "a message that a narrow link takes long for": COMMON,
    "another minority": SELDOM,
    "a write of the node file that failed": RARE,
    "a sync of the node file that failed": RARE,
    "a commit that failed": SELDOM,
    "a read of a segment that failed": SELDOM,
    "a read at a start that failed": SELDOM,
    "a lead that a stalled disk ends": RARE,
    "an append of the largest size": COMMON,
    "an append one byte too large": COMMON,
    "a start with settings of an earlier time": COMMON,
    "a name at another URL": RARE,
    "a member absent while the list changed twice": RARE,
    "healed without a minority first": COMMON,
    "each member asked to lead, clean and give its log": COMMON,
    "a producer that is forgotten": COMMON,
    "a transaction that its client aborted": COMMON,
    "a commit asked again, that is gone": COMMON,
    "a commit asked again, answered as the first one was": COMMON,
    "a commit asked for later, answered as before": COMMON,
    "a transaction that the library committed": COMMON,
    "a position committed with a transaction": COMMON,
    "a position that another worker has committed": COMMON,
    "a commit cancelled, and asked again": COMMON,
    "an abort beside a commit": COMMON,
    "an abort behind a commit without an answer": COMMON,
    "an append to a transaction raised, and made again": COMMON,
    "a submission cancelled, and sent again": COMMON,
    "a position committed by an impatient client": COMMON,
    "an error caught in a consumer's loop": COMMON,
    "a consumer's loop cancelled": COMMON,
    "a consumer rewound": COMMON,
    "a read of what was told as durable": COMMON,
    "a cut of what was durable": RARE,
    "an append answered before its sync": SELDOM,
    "an early answer that outlived a process": SELDOM,
    "an early answer that was lost": 2 * RARE,
    "a consumer that changed to BUFFER": COMMON,
    "a consumer that changed to ARCHIVE": COMMON,
    "a child that ended inside a call": COMMON,
    **dict.fromkeys((f"a child struck: {how}" for how in ("killed", "ends", "terminated", "hangs", "slow")), COMMON),
    "a process that ended at a call of a position": SELDOM,
    "a position whose write or sync failed": SELDOM,
    "a position file damaged": SELDOM,
    "a position file lost to rot": RARE,
    "a consumer that is parked": SELDOM,
    "a consumer that is parked, and has lost some": SELDOM,
    "a consumer paused": COMMON,
    "a consumer moved by reset": SELDOM,
    "a consumer moved by skip": SELDOM,
    "events given once more": SELDOM,
    "a consumer of the master that went on elsewhere": SELDOM,
    "messages delivered": COMMON,
    "a message delivered again": COMMON,
    "destinations drained in the end": COMMON,
    "move of a destination": COMMON,
    "DELETE of a destination": COMMON,
    "messages that lay in pages alone": COMMON,
    "messages that a node lacked, and fetched": SELDOM,
    "a page file lost, or cut short": SELDOM,
    "dead ones tried again": SELDOM,
    "a change of the group: add": SELDOM,
    "a change of the group: remove": RARE,
    "a change of the group: promote": RARE,
    "a change of the group: priority": SELDOM,
}
"""The consequences that faults must have, each at least once in this number of seeds."""
WITHIN_S = (1, 2, 5, 10, 20, 40)
"""Bounds of the histograms."""
COUNTED = {
    "operations": "client operations",
    "acknowledged": "appends acknowledged",
    "refused": "appends refused",
    "unknown": "appends of unknown outcome",
    "repeated": "submissions sent again",
    "duplicates": "answered as duplicates",
    "read": "entries read",
    "linearizable": "linearizable reads",
    "by_library": "appends acknowledged to the client library",
    "committed": "transactions committed",
    "gone": "transactions gone",
    "changes": "changes of master",
    "rolled_back": "rollbacks",
    "restored": "network restores",
    "replaced": "segments replaced after a failed write or sync",
    "mended": "blocks mended",
}


@dataclass(slots=True)
class Report:
    """The report of one seed."""

    seed: int
    size: int = 3
    operations: int = 0
    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    repeated: int = 0
    duplicates: int = 0
    read: int = 0
    linearizable: int = 0
    by_library: int = 0
    committed: int = 0
    gone: int = 0
    last: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    """The faults that had an effect, by kind."""
    met: Counter[str] = field(default_factory=Counter)
    """The consequences of faults: the work of a process at its end, the faults that a restore survived."""
    virtual_s: float = 0.0
    durable_bytes: int = 0
    """The bytes of the values that clients appended."""
    replaced: int = 0
    cleaned: int = 0
    mended: int = 0
    to_master_s: float = 0.0
    """Seconds from the end of all faults until a master had made an entry of its term durable."""
    to_heal_s: float = 0.0
    """The same, until every node followed at its end."""
    masters: list[str] = field(default_factory=list)
    """The masters, in order."""
    rolled_back: int = 0
    restored: int = 0
    transcript: list[str] = field(default_factory=list)

    @property
    def changes(self) -> int:
        return sum(one != other for one, other in pairwise(self.masters))

    @property
    def short_of(self) -> list[str]:
        """The minimums that this seed does not reach."""
        reached = {
            f"{self.virtual_s:.0f} of {VIRTUAL_S_MIN:.0f} virtual seconds": self.virtual_s >= VIRTUAL_S_MIN,
            f"{self.operations} of {OPERATIONS_MIN} operations": self.operations >= OPERATIONS_MIN,
            f"{self.faults.total()} of {FAULTS_MIN} faults": self.faults.total() >= FAULTS_MIN,
            f"{len(self.faults)} of {KINDS_MIN} kinds of fault": len(self.faults) >= KINDS_MIN,
        }
        return [said for said, enough in reached.items() if not enough]


FLOORS_FROM = 20
"""The number of seeds from which frequencies are meaningful."""


def shortfalls(reports: Sequence[Report]) -> list[str]:
    """Lists the minimums that a whole run does not reach."""
    short = [f"seed {report.seed}: {', '.join(said)}" for report in reports if (said := report.short_of)]
    changed = sum(report.changes > 0 for report in reports)
    if changed < CHANGES_FRACTION_MIN * len(reports):
        short.append(f"only {changed} of {len(reports)} seeds saw a change of master")
    if len(reports) < FLOORS_FROM:
        return short
    return (
        short
        + _missed(STRUCK, [report.faults for report in reports])
        + _missed(MET, [report.met for report in reports])
    )


def _missed(floors: Mapping[str, int], counters: Sequence[Counter[str]]) -> list[str]:
    reached = _added(counters)
    least = {what: len(counters) // seeds for what, seeds in floors.items()}
    return [f"{reached[what]} of {floor}: {what}" for what, floor in least.items() if reached[what] < floor]


def _added(counters: Iterable[Counter[str]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for each in counters:
        found.update(each)
    return found


def histogram(seconds: Sequence[float]) -> str:
    """Counts the durations up to each bound, and returns the longest, too."""
    counts = ", ".join(f"{sum(each <= bound for each in seconds):,} within {bound} s" for bound in WITHIN_S)
    return f"{counts}; at most {max(seconds, default=0.0):.1f} s"


def sums(reports: Sequence[Report], core_s: float) -> Table:
    faults, met = _added(report.faults for report in reports), _added(report.met for report in reports)
    virtual_s = sum(report.virtual_s for report in reports)
    table = Table(show_header=False, box=None)
    table.add_column(justify="right")
    sizes = Counter(report.size for report in reports)
    table.add_row("", "seeds by nodes: " + ", ".join(f"{sizes[size]:,} of {size}" for size in sorted(sizes)))
    for name, said in COUNTED.items():
        table.add_row(f"{sum(getattr(report, name) for report in reports):,}", said)
    table.add_row(f"{sum(report.changes > 0 for report in reports):,}", "seeds with a change of master")
    table.add_row(f"{sum(report.cleaned > 0 for report in reports):,}", "seeds that cleaned segments away")
    table.add_row(f"{sum(report.restored > 0 for report in reports):,}", "seeds with a network restore")
    table.add_row(f"{faults.total():,}", "faults")
    for what, count in faults.most_common():
        table.add_row(f"{count:,}", f"  {what}")
    for what, count in met.most_common():
        table.add_row(f"{count:,}", what)
    table.add_row("", f"time to a master: {histogram([report.to_master_s for report in reports])}")
    table.add_row("", f"time to heal: {histogram([report.to_heal_s for report in reports])}")
    table.add_row(f"{virtual_s / 3600:,.2f}", "virtual hours")
    table.add_row(f"{virtual_s / max(core_s, 0.001):,.0f}", "virtual hours for each core-hour")
    return table
