"""The state of one term that all parts of the master share."""

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
"""The node calls ``tick`` once in this many seconds."""


class Tenure(Role):
    """One term in which this node is the master. ``on_durable`` is called with each new durable end (DTVLSN) that the
    acknowledgements prove."""

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
        """The durability of an append that requests none. An append may request less than this, but not more."""
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
        """The first VLSN of this term; 0 until the block of the TERM entry is submitted."""
        self.feeders: dict[str, Feeder] = {}
        self.tasks: dict[Feeder, asyncio.Task[None]] = {}
        """The task of each feed, by feeder."""
        self.present = 0
        """The number of connected replicas that count for ``insufficient-replicas``."""
        self.heir: NodeName | None = None
        """The successor, while this node is handing over."""
        self.holds_back = False
        """True while appends wait until the successor has this master's whole log."""
        self.has_ended = False
        self.full: FullPolicies[Append] | None = None
        """The limits of destinations, or None until the term has begun."""

    def follow_settings(self) -> None:
        """Applies the group's newest settings from the log."""
        self.durability = self.log.view.history.durability

    @property
    def replicas(self) -> int:
        return len(self.feeders)

    def streams_in(self, term: Term) -> bool:
        return self.member.is_master() and term == self.term

    def heard_of(self, incarnation: int) -> Told:
        """Returns the log's end that this replica has acknowledged in this term."""
        synced = self.book.synced.get(Incarnation(incarnation))
        return Told(0, self.term, synced, self.log.view.history.term_of(synced)) if synced is not None else NOTHING

    def hears(self, feeder: Feeder) -> bool:
        """Returns whether the feeder's replica has completed its syncup (the comparison of logs), and has answered
        within an election timeout."""
        return feeder.streaming and feeder.silent_ticks <= self.member.config.election_timeout_s / TICK_S

    def end_feeds_of(self, names: list[str], why: VlsnLogError) -> None:
        for name in names:
            feeder = self.feeders[name]
            feeder.end(why)
            self.tasks[feeder].cancel()
