"""A member's report about itself, in a hello and in the answer to a hello."""

from __future__ import annotations

from repl.group import lost_group
from repl.group.founding import Answer, Purpose, Question
from repl.group.member import Member
from vlsn.ids import NULL_VLSN


def question_of(member: Member, to: str, purpose: Purpose) -> Question:
    opened = member.opened()
    told = opened.told()
    group_term, group_vlsn = group_at(member)
    return Question(
        group=member.config.group,
        sender=member.config.name,
        to=to,
        incarnation=f"{member.incarnation:016x}",
        process=f"{member.process:016x}",
        purpose=purpose,
        term=told.term,
        sequence=told.sequence,
        told=told.vlsn,
        told_term=told.block_term,
        wants_group=lost_group.is_lost(opened.log),
        levels=member.seams.levels,
        url=member.config.url,
        group_term=group_term,
        group_vlsn=group_vlsn,
        keys=list(member.keyring.ids),
    )


def group_at(member: Member) -> tuple[int, int]:
    """Returns term and VLSN of the newest GROUP entry in this log; (0, 0) if there is none."""
    history = member.opened().log.view.history
    at = history.group_vlsn if history.group is not None else NULL_VLSN
    return (history.term_of(at), at) if at else (0, 0)


def log_end(member: Member) -> tuple[int, int]:
    """Returns term and VLSN of the synced end of this member's log."""
    log = member.opened().log
    return log.view.history.term_of(log.view.range.last_sync), log.view.range.last_sync


def answer_of(member: Member, asker: int = 0, *, wants_group: bool = False) -> Answer:
    """Makes the answer of ``member``: its report about itself, and its newest report of the incarnation ``asker``. Only
    synced blocks are included."""
    opened = member.opened()
    told, heard, log = opened.told(), member.heard_of(asker), opened.log
    record = log.node_file.record
    span = log.view.range
    hands_term, hands_to = opened.announced
    return Answer(
        group=member.config.group,
        name=member.config.name,
        levels=member.seams.levels,
        incarnation=f"{record.incarnation:016x}",
        process=f"{member.process:016x}",
        term=record.term,
        empty=not log.view.allocated,
        last_term=log.view.history.term_of(span.last_sync),
        last=span.last_sync,
        floor_term=record.floor_term,
        floor_vlsn=record.floor_vlsn,
        state=member.state,
        no_space=log.refusal is not None,
        clock_us=member.seams.clock.wall_us(),
        sequence=told.sequence,
        told=told.vlsn,
        told_term=told.block_term,
        master=member.master_name() or "",
        master_url=member.master_url() or "",
        heard_sequence=heard.sequence,
        heard_term=heard.term,
        heard_told=heard.vlsn,
        heard_told_term=heard.block_term,
        known_group=lost_group.known_group(log) if wants_group else None,
        holds=opened.holds.told() if opened.lead is not None else None,
        hands_to=hands_to,
        hands_term=hands_term,
        alarms=member.alarms(),
        keys=list(member.keyring.ids),
    )
