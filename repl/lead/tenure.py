"""The state that all parts of one term share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from feeder.feeder import Feeder, Messages
from repl.destinations.full import FullPolicies
from repl.elect.electing import Electing
from repl.group.member import OpenMember
from repl.group.old_images import NOTHING, Told
from repl.group.role import Role
from repl.lead.append_book import Append, AppendBook
from repl.lead.unsynced_appends import UnsyncedAppends
from repl.read.reads import Reads
from vlsn.durability import SYNCED
from vlsn.errors import VlsnLogError
from vlsn.ids import NULL_VLSN, Incarnation, NodeName, Term, Vlsn

TICK_S = 0.1
"""Seconds between two calls of ``tick`` by the node."""


class Tenure(Role):
    """One term in which this node is the master. ``on_durable`` receives each new DTVLSN that the acknowledgements
    prove."""

    def __init__(
        self,
        opened: OpenMember,
        term: Term,
        electing: Electing,
        reads: Reads,
        *,
        on_durable: Callable[[Vlsn], None],
    ) -> None:
        self.opened = opened
        self.member = opened.member
        self.log = opened.log
        self.term = term
        self.electing = electing
        self.reads = reads
        self.own = Incarnation(self.member.incarnation)
        self.holds = opened.holds
        self.durability = SYNCED
        """The durability of appends that ask for none. No append may ask for more."""
        self.book = AppendBook(
            self.own,
            term,
            on_durable=on_durable,
            clock=self.member.seams.clock.monotonic_s,
            seconds=self.member.counts.appends,
        )
        self.messages = Messages()
        self.unsynced = UnsyncedAppends(self.book, self.messages)
        self.start: Vlsn = NULL_VLSN
        """The first VLSN of this term; 0 until its block is submitted."""
        self.feeders: dict[str, Feeder] = {}
        self.tasks: dict[Feeder, asyncio.Task[None]] = {}
        """The tasks of the feeds."""
        self.present = 0
        """The number of connected replicas that count for ``insufficient-replicas``."""
        self.heir: NodeName | None = None
        """The successor, while this node is handing over."""
        self.holds_back = False
        """True while appends wait until the successor has the whole log."""
        self.has_ended = False
        self.full: FullPolicies[Append] | None = None
        """The policies of destinations that can be full; None until the term has begun."""

    def follow_settings(self) -> None:
        """Uses the group's newest settings in the log from now on."""
        self.durability = self.log.view.history.durability

    @property
    def replicas(self) -> int:
        return len(self.feeders)

    def streams_in(self, term: Term) -> bool:
        return self.member.is_master() and term == self.term

    def heard_of(self, incarnation: int) -> Told:
        """Returns the end that this replica has acknowledged in this term."""
        synced = self.book.synced.get(Incarnation(incarnation))
        return Told(0, self.term, synced, self.log.view.history.term_of(synced)) if synced is not None else NOTHING

    def hears(self, feeder: Feeder) -> bool:
        """Returns whether the feeder's replica is past syncup, and has answered within an election timeout."""
        return feeder.streaming and feeder.silent_ticks <= self.member.config.election_timeout_s / TICK_S

    def end_feeds_of(self, names: list[str], why: VlsnLogError) -> None:
        for name in names:
            feeder = self.feeders[name]
            feeder.end(why)
            self.tasks[feeder].cancel()
