"""States of sinks. The COMMIT entry of a part of a batch sets states as named values. The state that is replaced is
checked later (``name_conflicts``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from repl.api import Puts, SinkAt, SinkChange
from repl.group.member import Member
from repl.names.commits import CommitLead, commit_alone
from repl.read.reads import Reads
from vlsn.errors import BadArgument, NotFound, ProducersMissing, TooLarge
from vlsn.ids import NUMBER_MAX
from vlsn.state.sinks import PREFIX, SINKS_MAX, is_run, key_of, outlived, states_in
from vlsn.write.local_log import LocalLog


def puts_of(log: LocalLog, changes: Mapping[str, SinkChange]) -> Puts:
    """Returns the names and values that set these states, and that delete the runs they replace. Raises
    ``BadArgument``, ``TooLarge``."""
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
    """Joins two sets of names for one COMMIT. No name may be in both sets."""
    if one is None or other is None:
        return one or other
    return Puts({**one.values, **other.values}, {**one.expects, **other.expects})


class NodeSinks:
    """The states of sinks in a node's group. ``leads`` returns the master's term, or raises ``NotMaster``."""

    def __init__(self, member: Member, leads: Callable[[], CommitLead]) -> None:
        self.member = member
        self._leads = leads

    def sinks(self) -> list[SinkAt]:
        """Returns the states of all sinks, sorted by name. Raises ``ProducersMissing`` while this node has lost the
        small state."""
        opened = self.member.opened()
        small = opened.log.view.history.small
        if small.lacks_to:
            raise ProducersMissing(
                f"this node has lost the small state up to VLSN {small.lacks_to}, and asks the other members"
            )
        states = states_in(small.as_of(opened.part(Reads).durable))
        return [SinkAt(name, placed.at, placed.state) for name, placed in states.items()]

    def sink(self, name: str) -> SinkAt:
        """Returns the state of one sink. Raises ``BadArgument``, ``NotFound``, and the errors of ``sinks``."""
        key_of(name)
        found = next((each for each in self.sinks() if each.name == name), None)
        if found is None:
            raise NotFound(f"sink {name} has no state here")
        return found

    async def delete_sink(self, name: str, at: int | None, timeout_s: float) -> None:
        """Deletes the state of a sink; durable on return. Raises ``NotFound``, ``StaleTerm``, and the errors of an
        append."""
        lead, key = self._leads(), key_of(name)
        if key not in lead.log.view.history.small:
            raise NotFound(f"sink {name} has no state here")
        puts = Puts({key: None}, {} if at is None else {key: at})
        await commit_alone(lead, puts, asyncio.get_running_loop().time() + timeout_s)
