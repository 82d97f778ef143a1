"""The rules of elections, as in Raft §5.2 and §5.4, with the pre-vote of its dissertation §9.6. Events go in, actions
come out.

    tick, heard, asked, answered  ─►  Election  ─►  Store (synced before the next action), Ask, Lead, StepDown

              no master heard for a timeout   a majority would      a majority does
    FOLLOWER ───────────────────────────► ASKING ─────────────► STANDING ─────────────► MASTER
        ▲                                   │ refused, silence      │ a higher term        │ a majority silent
        └───────────────────────────────────┴───────────────────────┴──────────────────────┘

1. An incarnation (a store of a node) has one vote in a term. The vote is stored and synced before it is sent.
2. A vote goes to a log whose end (last term, last VLSN) is at or past the voter's end. A vote floor is the end of a log
   that became shorter. A voter whose log ends below its vote floor uses the floor as its end, and does not stand.
   Sometimes only vote floors prevent an election. In that case, once *all* electable members have reported their logs'
   ends, the member with the highest end stands and may receive the votes.
3. A node that has heard from a master within its election timeout refuses its vote. So a node that comes back does not
   depose the master. A planned transfer is an exception. A pre-vote (``pre``) changes no state, so a node that is cut
   off does not drive up terms.
4. The candidate counts votes by its own log: a vote counts if the log lists the voter's incarnation as electable. The
   term of any other voter is ignored. ``claims`` decides which requests reach this module.
5. Priority only delays standing. If the master's process has ended, priority decides which node stands first
   (``electors``). A node with priority 0 stands after five rounds that no node won. A round may be lost only by chance:
   two nodes stood at once, or a voter heard from the master a moment later. A round that was lost by chance is soon
   followed by another, a few times while the master is silent.
6. A master steps down if it has not heard from a majority, itself included, for a timeout.

This module is pure: the time, the log's end and the group are arguments of each call, and ``uniform`` is the only
source of chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from feeder.majority import majority
from repl.group.electors import Elector, Listed, voters
from repl.group.vote_messages import Action, Ask, End, Lead, StepDown, Store, VoteReply, VoteRequest
from vlsn.ids import Incarnation, NodeName, Term
from vlsn.state.node_file import NodeRecord

ROUNDS_BEFORE_PRIORITY_0 = 5
FIRST_FRACTION = 0.2
"""The least share of an election timeout that a node waits after its start. A shorter wait would be useless: nodes that
hear from a master refuse their votes."""

SOON = (0.02, 0.3)
"""The shares of an election timeout after which a new round follows a round that was lost by chance."""
SOON_MAX = 3
"""The most rounds of this kind while one master is silent. Later refusals have another reason than chance."""

BELOW_FLOOR = "below-floor"
CHANCE = frozenset(("hears-master", "voted"))
"""The refusals that do not depend on the candidate, so that the next round may succeed."""


class Role(Enum):
    FOLLOWER = "follower"
    ASKING = "asking"
    STANDING = "standing"
    MASTER = "master"


@dataclass(slots=True)
class Standing:
    """The state of this node and of its log at the time of one call."""

    end: End
    """The end of the log. The log is drained: everything that was sealed or accepted is synced."""
    electors: Sequence[Elector]
    may_stand: bool = True
    """False while the node is damaged, is being restored, or does not know its condition."""
    may_vote: bool = True
    reluctant: bool = False
    """True if the node has no space for appends. A node without space stands as late as a node with priority 0."""
    leaving: bool = False
    """True while a new list of members, without this node, may still be rolled back. Until the list is durable, a
    majority of the others may be able to elect only this node (Raft, dissertation, §4.2.2). A leaving node does not
    count itself in a majority."""


@dataclass(slots=True)
class _Round:
    """One attempt to be elected, from its first request to its end."""

    granted: set[NodeName] = field(default_factory=set)
    ends: dict[NodeName, End] = field(default_factory=dict)
    by_chance: bool = True
    """True while every refusal so far was by chance."""
    is_over: bool = False
    """True once the round can no longer be won, and the next round is due."""
    refused_otherwise: bool = False
    """True if some vote was refused for another reason than a vote floor."""
    transfer: bool = False

    def is_highest_of_all(self, electable: set[NodeName], own: tuple[NodeName, End]) -> bool:
        if self.refused_otherwise or electable - {own[0]} - set(self.ends):
            return False
        return all(end <= own[1] for end in self.ends.values())


class Election:
    """One node's part in elections. After each call, the owner executes the returned actions in their order before the
    next call."""

    def __init__(
        self,
        record: NodeRecord,
        *,
        now: float,
        timeout_s: tuple[float, float],
        uniform: Callable[[float, float], float],
    ) -> None:
        self.group = record.group
        self.name = NodeName(record.node)
        self.incarnation = Incarnation(record.incarnation)
        self.term = Term(record.term)
        self.role = Role.FOLLOWER
        self.master: NodeName | None = None
        """The master that this node hears from, or this node itself."""
        self.failed_rounds = 0
        self.rounds = 0
        """The number of election rounds so far. An answer to an earlier round is ignored."""
        self._voted_for = record.voted_for if record.vote_term == record.term else ""
        self.floor: End = (record.floor_term, record.floor_vlsn)
        """The vote floor. The owner keeps it equal to the floor in the node file."""
        self._timeout_s = timeout_s
        self._uniform = uniform
        self._heard_at = now - timeout_s[1]
        """The time at which this node last heard from a master; long ago at the start."""
        self._heard_from: dict[NodeName, float] = {}
        self._is_founding = False
        """True from the founding term's begin until its first block is on the disk. No majority is needed so long."""
        self._round = _Round()
        self._soon = 0
        """The number of early rounds while the master was silent. An early round follows one that was lost by
        chance."""
        self._silent: NodeName | None = None
        """The master that fell silent."""
        self._listed = Listed((), self.name)
        self._deadline = now + uniform(timeout_s[0] * FIRST_FRACTION, timeout_s[0])

    # Events.

    def founded(self, term: Term, now: float, standing: Standing) -> list[Action]:
        """Begins the founding term. No vote is needed, because all members have answered that they are empty. ``term``
        is above every stored term."""
        assert term > self.term, (term, self.term)
        self.term = term
        self._voted_for = ""
        lead = self._lead(now, {elector.name for elector in standing.electors})
        self._is_founding = True
        return [Store(term, ""), lead]

    def has_founded(self, now: float) -> None:
        """Notes that the founding block is on this node's disk. No member could be fed before, however long the disk
        took, so the members' silence counts from now on."""
        self._is_founding = False
        self._heard_from = dict.fromkeys(self._heard_from, now)

    def rests(self, now: float, electors: Sequence[Elector]) -> bool:
        """Returns whether a ``tick`` at this time would do nothing, whatever the state of the log."""
        if self.role is Role.MASTER:
            electable = self._of(electors).electable
            return self._is_founding or not electable or self._heard(now, electable) >= majority(len(electable))
        return self._waits(now, electors)

    def due_in(self, now: float) -> float:
        """Returns the seconds until this node may stand. The node must be a follower."""
        return self._deadline - now

    def is_due(self, now: float, standing: Standing) -> bool:
        """Returns whether the next ``tick`` requests votes. Before that tick, feeds must have stopped and the log must
        be drained."""
        if self.role is Role.MASTER or self._waits(now, standing.electors):
            return False
        return self._may_stand(standing, rounds=self.failed_rounds + 1)

    def postpone(self, now: float, standing: Standing) -> None:
        """Postpones the election while a feed is being accepted."""
        self._wait(now, standing.electors)

    def gone(self, master: NodeName, now: float, electors: Sequence[Elector]) -> None:
        """Notes that no process listens at the address of ``master``. So the election need not wait for the timeout."""
        if self.role is Role.FOLLOWER and self.master == master:
            self._silent, self.master = master, None
            self._heard_at = now - self._timeout_s[1]
            least, most = self._of(electors).turn(master)
            turn = self._uniform(least * self._timeout_s[0], most * self._timeout_s[0])
            self._deadline = min(self._deadline, now + turn)

    def saw(self, term: Term) -> list[Action]:
        """Notes that a listed member has stored ``term``."""
        return self._rise(term, f"a member has stored term {term}") if term > self.term else []

    def resign(self, why: str, now: float, standing: Standing) -> list[Action]:
        """Ends the leadership of this node, because it can no longer lead."""
        if self.role is not Role.MASTER:
            return []
        self.role = Role.FOLLOWER
        self.master = None
        self._wait(now, standing.electors)
        return [StepDown(why)]

    def tick(self, now: float, standing: Standing) -> list[Action]:
        """Acts on the passing of time; called many times within an election timeout."""
        if self.role is Role.MASTER:
            return self._check_majority(now, standing)
        if self._waits(now, standing.electors):
            return []
        self.failed_rounds += 1
        self._silent, self.master = self.master or self._silent, None
        self._wait(now, standing.electors)
        if not self._may_stand(standing, rounds=self.failed_rounds):
            self.role = Role.FOLLOWER
            return []
        return self._ask(now, standing, pre=True)

    def heard(self, master: NodeName, term: Term, now: float, electors: Sequence[Elector]) -> list[Action]:
        """Notes that a feed of ``master`` in ``term`` was accepted or is active. ``term`` is never below the stored
        term, because feeds of lower terms are refused."""
        assert term >= self.term, (term, self.term)
        actions: list[Action] = []
        if term > self.term:
            actions = self._rise(term, f"{master} leads term {term}")
        elif self.role is not Role.FOLLOWER:
            assert self.role is not Role.MASTER, f"two masters of term {term}: {self.name} and {master}"
            self.role = Role.FOLLOWER
        self.master = master
        self.failed_rounds = self._soon = 0
        self._heard_at = now
        self._wait(now, electors)
        return actions

    def silent_s(self, now: float) -> float:
        """Returns the seconds since a master was heard last."""
        return max(0.0, now - self._heard_at)

    def heard_from(self, member: NodeName, now: float) -> None:
        """Notes that ``member`` has answered this node, its master, in the current term."""
        self._heard_from[member] = now

    def considers(self, request: VoteRequest, now: float, standing: Standing) -> bool:
        """Returns whether ``asked`` will compare logs or raise the term for this request. Before that, feeds and
        sealing of lower terms must have stopped, and the log must be drained."""
        if request.pre or not standing.may_vote or request.term < self.term:
            return False
        return request.transfer or not self._hears(now)

    def asked(self, request: VoteRequest, now: float, standing: Standing) -> tuple[list[Action], VoteReply]:
        """Answers a request for a vote. The owner executes the actions before it sends the reply."""
        actions: list[Action] = []
        refusal = self._refusal(request, now, standing)
        if refusal == "" and not request.pre:
            if request.term > self.term:
                actions += self._rise(
                    Term(request.term), f"{request.sender} stands in term {request.term}", store=False
                )
            self._voted_for = request.sender
            actions.append(Store(self.term, request.sender))
            self._wait(now, standing.electors)
        elif not request.pre and request.term > self.term and not self._hears(now) and standing.may_vote:
            actions += self._rise(Term(request.term), f"{request.sender} stands in term {request.term}")
        return actions, self.reply(request, refusal, standing)

    def reply(self, request: VoteRequest, refusal: str, standing: Standing) -> VoteReply:
        """Makes the reply to a request for a vote. ``refusal`` is the reason for a refusal; "" grants the vote."""
        return VoteReply(
            sender=self.name,
            incarnation=f"{self.incarnation:016x}",
            term=self.term,
            pre=request.pre,
            granted=not refusal,
            last_term=standing.end[0],
            last_vlsn=standing.end[1],
            reason=refusal,
            master=self.master or "",
        )

    def answered(self, reply: VoteReply, now: float, standing: Standing) -> list[Action]:
        """Handles a reply to a vote request (``Ask``). Late replies and replies to another round are ignored."""
        listed = {elector.name: elector for elector in standing.electors if elector.electable}
        elector = listed.get(NodeName(reply.sender))
        if elector is None or f"{elector.incarnation:016x}" != reply.incarnation:
            return []  # rule 4: neither this voter's vote nor its term counts
        if reply.term > self.term and not (reply.pre and reply.granted):
            return self._rise(Term(reply.term), f"{reply.sender} has stored term {reply.term}")
        if reply.granted and not reply.pre and reply.term != self.term:
            return []  # this is a late vote of an earlier term: in this term the voter may vote for another node
        wanted = {Role.ASKING: True, Role.STANDING: False}.get(self.role)
        if wanted is None or reply.pre is not wanted:
            return []
        self._round.ends[elector.name] = reply.end
        if reply.granted:
            self._round.granted.add(elector.name)
        elif reply.reason != BELOW_FLOOR:
            self._round.refused_otherwise = True
        if not reply.granted:
            self._round.by_chance &= reply.reason in CHANCE
            self._again_soon(now, standing)
        return self._count(now, standing)

    def transfer(self, now: float, standing: Standing) -> list[Action]:
        """Stands at once, because the master asks this node to take over. The master asks only a node that has its
        whole log."""
        if self.role is not Role.FOLLOWER or not self._may_stand(standing, rounds=0, asked=True):
            return []
        self._round = _Round(transfer=True)
        return self._stand(now, standing)

    # Standing.

    def _ask(self, now: float, standing: Standing, *, pre: bool) -> list[Action]:
        highest = not pre and self._round.is_highest_of_all(voters(standing.electors), (self.name, standing.end))
        self.role = Role.ASKING if pre else Role.STANDING
        self._round = _Round({self.name}, transfer=self._round.transfer and not pre)
        self.rounds += 1
        requests = tuple(
            VoteRequest(
                group=self.group,
                sender=self.name,
                incarnation=f"{self.incarnation:016x}",
                to=elector.name,
                term=self.term + 1 if pre else self.term,
                pre=pre,
                last_term=standing.end[0],
                last_vlsn=standing.end[1],
                transfer=self._round.transfer,
                highest_of_all=highest,
            )
            for elector in standing.electors
            if elector.electable and elector.name != self.name
        )
        return [Ask(requests), *self._count(now, standing)]

    def _stand(self, now: float, standing: Standing) -> list[Action]:
        self.term = Term(self.term + 1)
        self._voted_for = self.name
        self._wait(now, standing.electors)
        return [Store(self.term, self.name), *self._ask(now, standing, pre=False)]

    def _count(self, now: float, standing: Standing) -> list[Action]:
        electable = voters(standing.electors)
        won = len(self._round.granted & electable) >= majority(len(electable))
        if self.role is Role.ASKING:
            highest = self._round.is_highest_of_all(electable, (self.name, standing.end))
            return self._stand(now, standing) if (won and standing.end >= self.floor) or highest else []
        if not won or self.role is not Role.STANDING:
            return []
        return [self._lead(now, self._round.granted)]

    def _again_soon(self, now: float, standing: Standing) -> None:
        """Moves the next round forward if this round is lost by chance alone. No answer is expected from the silent
        master."""
        lost, electable = self._round, voters(standing.electors)
        open_ = electable - set(lost.ends) - {self.name, self._silent}
        if lost.is_over or len(lost.granted & electable) + len(open_) >= majority(len(electable)):
            return
        lost.is_over = True
        if lost.by_chance and self._soon < SOON_MAX:
            self._soon += 1
            soon = self._uniform(SOON[0] * self._timeout_s[0], SOON[1] * self._timeout_s[0])
            self._deadline = min(self._deadline, now + soon + self._of(standing.electors).delay_s)

    def _lead(self, now: float, heard: Iterable[NodeName]) -> Lead:
        self.role = Role.MASTER
        self.master = self.name
        self.failed_rounds = self._soon = 0
        self._is_founding = False
        self._heard_from = dict.fromkeys(heard, now)
        return Lead(self.term)

    def _may_stand(self, standing: Standing, *, rounds: int, asked: bool = False) -> bool:
        own = next((elector for elector in standing.electors if elector.name == self.name), None)
        if not standing.may_stand:
            return False
        if own is None:
            return standing.leaving
        if own.incarnation != self.incarnation or not own.electable:
            return False
        return asked or (own.priority > 0 and not standing.reluctant) or rounds >= ROUNDS_BEFORE_PRIORITY_0

    def waits_for(self, standing: Standing) -> str:
        """Returns why the vote floor keeps this node from standing; "" if the node may stand."""
        if standing.end >= self.floor:
            return ""
        further = [name for name, end in self._round.ends.items() if end > standing.end]
        if further:
            return f"{further[0]} has more of the log than this node"
        silent = sorted(voters(standing.electors) - {self.name} - set(self._round.ends))
        return f"waits for {', '.join(silent)} to report the end of its log" if silent else ""

    # Voting.

    def _refusal(self, request: VoteRequest, now: float, standing: Standing) -> str:
        """Returns why a vote is refused; "" if it is granted."""
        if not standing.may_vote:
            return "may-not-vote"
        if request.term < self.term or (request.pre and request.term == self.term and self._voted_for):
            return "stale-term"
        if not request.transfer and self._hears(now):
            return "hears-master"
        if request.term == self.term and self._voted_for not in ("", request.sender):
            return "voted"
        if request.end < standing.end:
            return "shorter-log"
        if request.end < self.floor and not request.highest_of_all:
            return BELOW_FLOOR
        return ""

    def _hears(self, now: float) -> bool:
        return self.role is Role.MASTER or now - self._heard_at < self._timeout_s[0]

    # Time and terms.

    def _waits(self, now: float, electors: Sequence[Elector]) -> bool:
        """Returns whether it is too early to stand. If this node is the only elector, it need not wait."""
        return now < self._deadline and self._of(electors).electable != {self.name}

    def _heard(self, now: float, electable: set[NodeName]) -> int:
        """Returns how many of ``electable`` this master has heard from within a timeout, itself included."""
        since = now - self._timeout_s[0]
        return sum(name == self.name or self._heard_from.get(name, 0.0) > since for name in electable)

    def _of(self, electors: Sequence[Elector]) -> Listed:
        """Caches the ``Listed`` of a list of electors, because the same list is used many times a second."""
        if electors is not self._listed.electors:
            self._listed = Listed(electors, self.name)
        return self._listed

    def _check_majority(self, now: float, standing: Standing) -> list[Action]:
        electable = voters(standing.electors)
        if self._is_founding or not electable:
            return []
        heard = self._heard(now, electable)
        if heard >= majority(len(electable)):
            return []
        self.role = Role.FOLLOWER
        self.master = None
        self._wait(now, standing.electors)
        return [StepDown(f"no majority: {heard} of {len(electable)} members heard")]

    def _rise(self, term: Term, why: str, *, store: bool = True) -> list[Action]:
        """Moves to a higher term, in which this node has not voted yet."""
        led = self.role is Role.MASTER
        self.term = term
        self._voted_for = ""
        self.role = Role.FOLLOWER
        self.master = None
        actions: list[Action] = [StepDown(why)] if led else []
        return [*actions, Store(term, "")] if store else actions

    def _wait(self, now: float, electors: Sequence[Elector]) -> None:
        """Draws a new random timeout and waits for it. The wait is longer for a node with a lower priority."""
        self._deadline = now + self._uniform(*self._timeout_s) + self._of(electors).delay_s
