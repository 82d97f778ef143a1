"""A vote floor that is met by a master's log while the master's term is the stored one."""

from __future__ import annotations

from dataclasses import replace

from tests.vlsn.logs import Machine, Opened
from vlsn.ids import Term


def test_a_floor_is_met_by_the_log_of_the_stored_terms_master_alone() -> None:
    """A higher term was voted in since: this log need not have its master's entries."""
    opened = Opened(Machine())
    opened.append(b"a", b"b")
    log = opened.log
    before, end = log.node_file.record.term, (log.view.history.last_term, log.view.range.last_sync)
    floor = (end[0], end[1] + 10)
    record = replace(log.node_file.record, term=Term(before + 1), floor_term=floor[0], floor_vlsn=floor[1])
    log.node_file.replace(record)
    log.promises.meet_floor(Term(before))
    assert (log.node_file.record.floor_term, log.node_file.record.floor_vlsn) == floor
    log.promises.meet_floor(Term(before + 1))
    assert (log.node_file.record.floor_term, log.node_file.record.floor_vlsn) == end
