"""Replaces a GROUP entry that a node has lost. A member that has the entry sends it in its answers to hellos.

A GROUP entry lists the members. If a log was cleaned past its GROUP entry, only the log's state record still has the
entry. A node that has lost its GROUP entry and its state record counts no votes or acknowledgements. The node neither
leads nor cleans, and its status says so.

    GROUP at 2, log cleaned up to 60, state lost      asks in its hellos; n2 knows GROUP 2, and no later one up to 95
                                                      95 is past 60: the entry at 2 is the valid one before VLSN 60

In this example, two parts belong to one history: the entries that n2 reports as durable up to 95, and the entries
before this log's first VLSN. A GROUP entry from 60 on would be in this log itself.
"""

from __future__ import annotations

from repl.group.founding import Answer, KnownGroup
from repl.group.member import Member
from vlsn.format.records import GroupEntry
from vlsn.ids import Vlsn
from vlsn.write.local_log import LocalLog

REASON = "no-group: its GROUP entry was cleaned away and `state` is lost; waits for a member that has it"


def is_lost(log: LocalLog) -> bool:
    return log.view.history.lacks_group(log.view.range.first, log.view.dtvlsn)


def known_group(log: LocalLog) -> KnownGroup | None:
    """Returns the group as this node knows it, or None if it does not know a durable GROUP entry."""
    durable = [(vlsn, entry) for vlsn, entry in log.view.history.groups if vlsn <= log.view.dtvlsn]
    if not durable or is_lost(log):
        return None
    return KnownGroup(vlsn=durable[-1][0], upto=log.view.dtvlsn, entry=durable[-1][1])


def counts(known: KnownGroup, first: int) -> bool:
    """Returns whether ``known`` is the newest GROUP entry before ``first``, the first VLSN of the log that has lost it.
    The sender of ``known`` has the log up to ``upto``."""
    return known.vlsn < first <= known.upto + 1


def take(member: Member, answer: Answer) -> None:
    """Adopts the group in a member's answer if this log has lost its own. Raises ``BadBody``."""
    log, known = member.log, answer.known_group
    if known is None or log is None or not is_lost(log):
        return
    if known.entry.group != member.config.group or not counts(known, log.view.range.first):
        return
    log.view.history.groups.insert(0, (Vlsn(known.vlsn), GroupEntry.decode(known.entry.encode())))
    listed = ",".join(each.name for each in known.entry.members)
    member.event("group.found", vlsn=known.vlsn, members=listed, peer=answer.name)
