"""Checks readers: each stream rises by one, and the entries that it received stay."""

from __future__ import annotations

from collections.abc import Iterator

from harness.checks.view import Anomaly, View


def poll_order(view: View) -> Iterator[Anomaly]:
    """Checks that the next entry is at the next VLSN, within a page and from page to page."""
    for stream in view.streams:
        due = stream.start
        for page in stream.pages:
            for at, vlsn in enumerate(page.vlsns):
                if vlsn != due:
                    rule = "poll-skip" if vlsn > due else "nonmonotonic-poll"
                    where = "within a page" if at else "at the beginning of a page"
                    detail = f"{where}: VLSN {due} was due"
                    yield Anomaly(rule, stream.process, detail, vlsn, 0, page.time / 1e9)
                due = vlsn + 1


def lost_reads(view: View) -> Iterator[Anomaly]:
    """Checks that every received entry is in every final log, since it was durable."""
    for final in view.finals:
        kept = dict(zip(final.page.vlsns, final.page.numbers, strict=True))
        told: set[int] = set()
        for stream in view.streams:
            for page in stream.pages:
                for vlsn, number in zip(page.vlsns, page.numbers, strict=True):
                    if final.first <= vlsn <= final.to and kept.get(vlsn) != number and vlsn not in told:
                        told.add(vlsn)
                        detail = f"was shown this; in the log of {final.node} it is {kept.get(vlsn, 'nothing')}"
                        yield Anomaly("lost-read", stream.process, detail, vlsn, number, page.time / 1e9)


def stale_reads(view: View) -> Iterator[Anomaly]:
    """Checks that a linearizable read returns all that was acknowledged, or read linearizably, before it began."""
    told = [(send.ended, send.first + len(send.numbers) - 1) for send in view.sends if send.end == "ok"]
    told = sorted(told + [(look.ended, look.to) for look in view.looks])
    at = highest = 0
    for look in sorted(view.looks, key=lambda look: look.began):
        while at < len(told) and told[at][0] < look.began:
            highest = max(highest, told[at][1])
            at += 1
        if look.to < highest:
            detail = f"VLSN {highest} had been told to somebody before this read began"
            yield Anomaly("stale-read", look.process, detail, look.to, 0, look.ended / 1e9)


def readers_at_the_end(view: View) -> Iterator[Anomaly]:
    """Checks that every reader reaches the end of the final reads, if the group has healed. Readers of removed nodes
    alone are exempt."""
    end = min(final.to for final in view.finals if final.member) if view.healed else 0
    members = view.members
    reached: dict[str, int] = {}
    for stream in view.streams:
        if members is not None and members.isdisjoint(stream.nodes):
            continue
        last = max((max(page.vlsns) for page in stream.pages if page.vlsns), default=0)
        reached[stream.process] = max(reached.get(stream.process, 0), last)
    for process, last in reached.items():
        if last < end:
            yield Anomaly("unseen", process, f"read up to {last} only, the logs go on to {end}", last)


CHECKS = (poll_order, lost_reads, stale_reads, readers_at_the_end)
