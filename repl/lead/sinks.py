"""States of sinks, made what the COMMIT of a part sets; which state it starts from is judged later (``puts``)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from repl.api import Puts, SinkChange
from vlsn.errors import BadArgument, TooLarge
from vlsn.ids import NUMBER_MAX
from vlsn.state.sinks import PREFIX, SINKS_MAX, is_run, key_of, outlived, states_in
from vlsn.write.local_log import LocalLog


def puts_of(log: LocalLog, changes: Mapping[str, SinkChange]) -> Puts:
    """Makes what sets these states, and forgets the runs that they outlive. Raises ``BadArgument``, ``TooLarge``."""
    values: dict[str, bytes | None] = {}
    expects: dict[str, int] = {}
    states = states_in(log.view.history.small)
    for name, change in changes.items():
        key = key_of(name)
        change.state.check()
        if not 0 <= change.at <= NUMBER_MAX:
            raise BadArgument(f"at: {change.at} is no VLSN")
        if name not in states:
            unfinished = sum(not is_run(each) or not placed.state.finished for each, placed in states.items())
            if unfinished >= SINKS_MAX:
                raise TooLarge(f"{SINKS_MAX} sinks have states already; delete one that is not needed")
        values |= {PREFIX + run: None for run in outlived(states, name)}
        values[key] = msgspec.json.encode(change.state)
        expects[key] = change.at
    return Puts(values, expects)


def joined(one: Puts | None, other: Puts | None) -> Puts | None:
    """Makes one COMMIT's of what two set, no name twice."""
    if one is None or other is None:
        return one or other
    return Puts({**one.values, **other.values}, {**one.expects, **other.expects})
