"""Elections: the rules one by one, and whole groups on a network that loses, delays and cuts, from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from feeder.majority import majority
from repl.elect.election import ROUNDS_BEFORE_PRIORITY_0, SOON, SOON_MAX, Election, Role, Standing
from repl.group.electors import PRIORITY_DELAY_S, Elector
from repl.group.vote_messages import Action, Ask, End, Lead, StepDown, Store, VoteReply, VoteRequest
from tests.fakes.seeds import seeds
from vlsn.ids import Incarnation, NodeName, Term
from vlsn.state.node_file import NodeRecord

TIMEOUT = (1.0, 2.0)
FIVE = [NodeName(f"n{number}") for number in range(1, 6)]
NAMES = FIVE[:3]


def electors(names: Sequence[NodeName] = NAMES, **priorities: int) -> list[Elector]:
    return [
        Elector(name, Incarnation(number), priority=priorities.get(name, 1)) for number, name in enumerate(names, 1)
    ]


def record(name: str = "n1", **fields: object) -> NodeRecord:
    blank = NodeRecord(group="g", node=name, incarnation=int(name[1:]))
    return replace(blank, **fields)  # type: ignore[arg-type]


def election(name: str = "n1", **fields: object) -> Election:
    return Election(record(name, **fields), now=0.0, timeout_s=TIMEOUT, uniform=lambda low, high: (low + high) / 2)


def standing(end: End = (1, 10), members: Sequence[Elector] | None = None, **fields: bool) -> Standing:
    return Standing(end, members if members is not None else electors(), **fields)


def request(sender: str, term: int, end: End = (1, 10), **fields: object) -> VoteRequest:
    base = VoteRequest(
        group="g",
        sender=sender,
        incarnation=f"{int(sender[1:]):016x}",
        to="n1",
        term=term,
        pre=False,
        last_term=end[0],
        last_vlsn=end[1],
    )
    return VoteRequest(**{name: fields.get(name, getattr(base, name)) for name in base.__struct_fields__})  # type: ignore[arg-type]


def reply(sender: str, term: int, *, pre: bool, granted: bool, end: End = (1, 10), reason: str = "") -> VoteReply:
    return VoteReply(
        sender=sender,
        incarnation=f"{int(sender[1:]):016x}",
        term=term,
        pre=pre,
        granted=granted,
        last_term=end[0],
        last_vlsn=end[1],
        reason=reason,
    )


def kinds(actions: Sequence[Action]) -> list[type]:
    return [type(action) for action in actions]


def elected(one: Election, at: Standing) -> float:
    """``one`` wins with n2's votes; when."""
    assert kinds(one.tick(2.0, at)) == [Ask]
    asked = one.answered(reply("n2", one.term, pre=True, granted=True), 2.0, at)
    assert kinds(asked) == [Store, Ask]
    assert kinds(one.answered(reply("n2", one.term, pre=False, granted=True), 2.0, at)) == [Lead]
    return 2.0


def test_a_node_asks_before_it_stands_and_stores_its_vote_before_it_asks_for_others() -> None:
    one, at = election(), standing()
    assert one.tick(0.5, at) == []
    (ask,) = one.tick(1.6, at)
    assert isinstance(ask, Ask)
    assert [(each.to, each.pre, each.term) for each in ask.requests] == [("n2", True, 1), ("n3", True, 1)]
    assert (one.term, one.role) == (0, Role.ASKING)  # nothing has changed anywhere
    store, ask = one.answered(reply("n3", 0, pre=True, granted=True), 1.7, at)
    assert store == Store(Term(1), "n1")
    assert isinstance(ask, Ask)
    assert [(each.to, each.pre, each.term) for each in ask.requests] == [("n2", False, 1), ("n3", False, 1)]
    assert one.answered(reply("n2", 1, pre=False, granted=True), 1.8, at) == [Lead(Term(1))]
    assert (one.role, one.master) == (Role.MASTER, "n1")


def test_one_vote_in_a_term_and_it_is_stored_before_it_is_told() -> None:
    """Raft §5.2."""
    one, at = election(), standing()
    actions, said = one.asked(request("n2", 5), 0.1, at)
    assert (actions, said.granted) == ([Store(Term(5), "n2")], True)
    actions, said = one.asked(request("n3", 5), 0.1, at)
    assert (actions, said.granted, said.reason) == ([], False, "voted")
    actions, said = one.asked(request("n2", 5), 0.1, at)
    assert (actions, said.granted) == ([Store(Term(5), "n2")], True)  # its reply was lost


def test_a_vote_outlives_a_restart() -> None:
    one = election(term=5, vote_term=5, voted_for="n2")
    assert not one.asked(request("n3", 5), 0.1, standing())[1].granted
    assert one.asked(request("n2", 5), 0.1, standing())[1].granted
    older = election(term=6, vote_term=5, voted_for="n2")
    assert older.asked(request("n3", 6), 0.1, standing())[1].granted


@pytest.mark.parametrize(
    ("own", "theirs", "granted"),
    [((2, 10), (2, 10), True), ((2, 10), (2, 9), False), ((2, 10), (3, 1), True), ((2, 10), (1, 99), False)],
)
def test_a_vote_goes_to_a_log_that_is_at_least_as_far(own: End, theirs: End, granted: bool) -> None:
    """Raft §5.4.1."""
    one = election(term=3)
    assert one.asked(request("n2", 4, theirs), 0.1, standing(own))[1].granted is granted
    assert one.term == 4  # the term is taken over either way


def test_a_floor_counts_as_the_end_of_the_log() -> None:
    one = election(term=3, floor_term=2, floor_vlsn=50)
    said = one.asked(request("n2", 4, (2, 49)), 0.1, standing((2, 40)))[1]
    assert (said.granted, said.reason, said.end) == (False, "below-floor", (2, 40))
    assert one.asked(request("n2", 5, (2, 50)), 0.1, standing((2, 40)))[1].granted


def test_below_its_floor_a_node_stands_only_as_the_highest_of_all() -> None:
    one, at = election(floor_term=1, floor_vlsn=50), standing((1, 40))
    one.tick(1.6, at)
    assert one.answered(reply("n2", 0, pre=True, granted=True, end=(1, 30)), 1.7, at) == []
    store, ask = one.answered(reply("n3", 0, pre=True, granted=True, end=(1, 40)), 1.7, at)
    assert isinstance(ask, Ask)
    assert all(each.highest_of_all for each in ask.requests)
    other = election("n2", floor_term=1, floor_vlsn=60)
    assert other.asked(request("n1", 1, (1, 40), highest_of_all=True), 0.1, standing((1, 30)))[1].granted
    assert isinstance(store, Store)


def test_a_refusal_for_another_reason_than_a_floor_keeps_the_highest_from_standing() -> None:
    one, at = election(floor_term=1, floor_vlsn=50), standing((1, 40))
    one.tick(1.6, at)
    one.answered(reply("n2", 0, pre=True, granted=False, end=(1, 30), reason="hears-master"), 1.7, at)
    assert one.answered(reply("n3", 0, pre=True, granted=True, end=(1, 30)), 1.7, at) == []


def test_whoever_hears_a_master_refuses_but_not_a_planned_transfer() -> None:
    one, at = election("n3"), standing()
    assert one.heard(NAMES[0], Term(4), 10.0, at.electors) == [Store(Term(4), "")]
    actions, said = one.asked(request("n2", 5), 10.5, at)
    assert (actions, said.granted, said.reason, said.master, one.term) == ([], False, "hears-master", "n1", 4)
    assert one.asked(request("n2", 5, transfer=True), 10.5, at)[1].granted
    late = election("n3", term=4)
    late.heard(NAMES[0], Term(4), 10.0, at.electors)
    assert late.asked(request("n2", 5), 11.1, at)[1].granted


def test_a_question_changes_nothing() -> None:
    one, at = election(term=3), standing()
    actions, said = one.asked(request("n2", 9, pre=True), 0.1, at)
    assert (actions, said.granted, one.term) == ([], True, 3)
    assert one.asked(request("n3", 4), 0.1, at)[1].granted


def test_a_node_that_is_cut_off_does_not_drive_up_terms() -> None:
    one, at = election(), standing()
    for tenth in range(1000):
        one.tick(tenth / 10, at)
    assert one.term == 0


def test_votes_count_only_for_listed_electable_incarnations() -> None:
    members = [
        *electors()[:2],
        Elector(NodeName("n3"), Incarnation(33)),
        Elector(NodeName("n4"), Incarnation(4), False),
    ]
    one, at = election(), standing(members=members)
    one.tick(1.6, at)
    assert one.answered(reply("n3", 0, pre=True, granted=True), 1.7, at) == []  # another incarnation
    assert one.answered(reply("n4", 0, pre=True, granted=True), 1.7, at) == []  # not electable
    assert one.answered(reply("n5", 0, pre=True, granted=True), 1.7, at) == []  # not listed
    assert kinds(one.answered(reply("n2", 0, pre=True, granted=True), 1.7, at)) == [Store, Ask]


def test_late_replies_change_nothing() -> None:
    one, at = election(), standing()
    one.tick(1.6, at)
    assert one.answered(reply("n2", 0, pre=False, granted=True), 1.7, at) == []
    one.answered(reply("n2", 0, pre=True, granted=True), 1.7, at)
    assert one.answered(reply("n3", 0, pre=True, granted=True), 1.7, at) == []
    assert one.role is Role.STANDING


def test_a_late_vote_of_an_earlier_term_is_not_counted_in_this_one() -> None:
    """Its voter may have given this term's vote to another: two masters of one term."""
    one, at = election(), standing()
    one.tick(2.0, at)
    one.answered(reply("n3", 0, pre=True, granted=True), 2.0, at)
    assert (one.role, one.term) == (Role.STANDING, 1)
    one.tick(5.0, at)
    one.answered(reply("n3", 1, pre=True, granted=True), 5.0, at)
    assert (one.role, one.term) == (Role.STANDING, 2)
    assert one.answered(reply("n2", 1, pre=False, granted=True), 5.1, at) == []
    assert kinds(one.answered(reply("n2", 2, pre=False, granted=True), 5.2, at)) == [Lead]


def test_a_higher_term_ends_a_lead() -> None:
    one, at = election(), standing()
    now = elected(one, at)
    down, store = one.answered(reply("n3", 7, pre=False, granted=False), now, at)
    assert isinstance(down, StepDown)
    assert store == Store(Term(7), "")
    assert one.role is Role.FOLLOWER


def test_a_master_that_hears_no_majority_steps_down() -> None:
    one, at = election(), standing()
    now = elected(one, at)
    one.heard_from(NodeName("n3"), now + 0.9)
    assert one.tick(now + 1.5, at) == []
    (down,) = one.tick(now + 2.0, at)
    assert isinstance(down, StepDown)
    assert "1 of 3" in down.reason


def test_priority_delays_and_nothing_else() -> None:
    members = electors(n1=1, n2=3)
    one, at = election(), standing(members=members)
    one.heard(NAMES[1], Term(0), 0.0, at.electors)
    assert one.tick(1.5 + 1.9 * PRIORITY_DELAY_S, at) == []
    assert kinds(one.tick(1.5 + 2.1 * PRIORITY_DELAY_S, at)) == [Ask]


@pytest.mark.parametrize(
    ("priorities", "turn"),
    [
        ({}, (0.0, 0.3)),  # n1 and n3 share one
        ({"n1": 2}, (0.05, 0.1)),
        ({"n1": 10, "n2": 10}, (0.05, 0.1)),  # whoever has ended does not count
        ({"n3": 2}, (0.25, 0.3)),
        ({"n1": 0}, (0.25, 0.3)),
        ({"n3": 5, "n4": 5, "n5": 2}, (0.65, 0.7)),  # 0 to 0.3: n3 and n4; 0.45 to 0.5: n5
        ({"n4": 7, "n5": 9}, (0.4, 0.7)),  # n5, n4, then n1 and n3
    ],
)
def test_once_the_masters_process_has_ended_priorities_take_turns(
    priorities: dict[str, int], turn: tuple[float, float]
) -> None:
    members = electors(FIVE if "n5" in priorities else NAMES, **priorities)
    drawn: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        drawn.append((low, high))
        return high

    one = Election(record(), now=0.0, timeout_s=TIMEOUT, uniform=uniform)
    one.heard(NAMES[1], Term(0), 1.0, members)
    one.gone(NAMES[1], 1.1, members)
    assert drawn[-1] == pytest.approx(turn)
    assert one.due_in(1.1) == pytest.approx(turn[1])
    one.gone(NAMES[1], 1.2, members)  # heard of once more: nothing is drawn again
    assert one.due_in(1.2) == pytest.approx(turn[1] - 0.1)


def test_priority_0_stands_after_five_rounds_without_a_master() -> None:
    members = electors(n1=0)
    one, at = election(), standing(members=members)
    now, asked = 0.0, []
    for _ in range(ROUNDS_BEFORE_PRIORITY_0 + 1):
        now += 3.0
        asked.append(kinds(one.tick(now, at)) == [Ask])
    assert asked == [False] * (ROUNDS_BEFORE_PRIORITY_0 - 1) + [True, True]


def lost(one: Election, now: float, at: Standing, reason: str, *, pre: bool = False) -> float:
    """``one`` loses a round to n2, n1 being silent; in how many seconds its next one begins."""
    assert kinds(one.tick(now, at)) == [Ask]
    if not pre:
        assert kinds(one.answered(reply("n2", one.term, pre=True, granted=True), now, at)) == [Store, Ask]
    assert one.answered(reply("n2", one.term, pre=pre, granted=False, reason=reason), now, at) == []
    return one.due_in(now)


def silenced(names: Sequence[NodeName] = NAMES, **priorities: int) -> tuple[Election, Standing]:
    """n3, whose master n1 was heard last at 0."""
    one, at = election("n3"), standing(members=electors(names, **priorities))
    one.heard(NAMES[0], Term(4), 0.0, at.electors)
    return one, at


@pytest.mark.parametrize(("reason", "pre"), [("voted", False), ("hears-master", True)])
def test_a_round_that_is_lost_by_chance_is_soon_followed_by_another_but_not_for_ever(reason: str, pre: bool) -> None:
    one, at = silenced()
    now = 2.0
    for _ in range(SOON_MAX):
        due = lost(one, now, at, reason, pre=pre)
        assert SOON[0] <= due <= SOON[1]
        now += due
    assert lost(one, now, at, reason, pre=pre) >= 1.0
    one.heard(NAMES[0], one.term, 20.0, at.electors)
    assert lost(one, 30.0, at, reason, pre=pre) <= SOON[1]  # another silence


def test_who_has_led_begins_another_silence() -> None:
    one, at = silenced()
    now = 2.0
    for _ in range(SOON_MAX):
        now += lost(one, now, at, "voted")
    now += lost(one, now, at, "voted")
    one.tick(now, at)
    one.answered(reply("n2", one.term, pre=True, granted=True), now, at)
    assert kinds(one.answered(reply("n2", one.term, pre=False, granted=True), now, at)) == [Lead]
    assert kinds(one.tick(now + 2.0, at)) == [StepDown]  # nobody is heard any more
    assert lost(one, now + 5.0, at, "voted") <= SOON[1]


def test_a_round_that_many_refuse_is_one_lost_round() -> None:
    one, at = silenced(FIVE)
    now = 2.0
    for _ in range(SOON_MAX):
        assert kinds(one.tick(now, at)) == [Ask]
        for name in ("n2", "n4", "n5"):
            one.answered(reply(name, one.term, pre=True, granted=False, reason="hears-master"), now, at)
        assert one.due_in(now) <= SOON[1]
        now += one.due_in(now)


def test_one_refusal_for_a_reason_is_enough_among_others_by_chance() -> None:
    one, at = silenced(FIVE)
    one.tick(2.0, at)
    for name, reason in (("n2", "shorter-log"), ("n4", "hears-master"), ("n5", "hears-master")):
        one.answered(reply(name, one.term, pre=True, granted=False, reason=reason), 2.0, at)
    assert one.due_in(2.0) >= 1.0


def test_two_that_stand_at_once_when_the_masters_process_has_ended_stand_again_soon() -> None:
    one, at = silenced()
    one.gone(NAMES[0], 0.1, at.electors)
    assert one.due_in(0.1) <= 0.3
    assert lost(one, 0.5, at, "voted") <= SOON[1]


def test_the_next_round_after_a_split_vote_follows_priorities() -> None:
    one, at = silenced(n2=3)
    assert lost(one, 3.0, at, "voted") == pytest.approx((SOON[0] + SOON[1]) / 2 + 2 * PRIORITY_DELAY_S)


@pytest.mark.parametrize("reason", ["shorter-log", "may-not-vote", "below-floor", "stale-term"])
def test_a_round_that_is_lost_for_a_reason_is_followed_by_a_timeout(reason: str) -> None:
    one, at = silenced()
    assert lost(one, 2.0, at, reason, pre=True) >= 1.0


def test_a_round_that_may_still_be_won_is_not_over() -> None:
    """The silent master is n1, and n2 has voted for another: of five, n4 and n5 have not answered."""
    one, at = silenced(FIVE)
    one.tick(2.0, at)
    for name in ("n2", "n4"):
        one.answered(reply(name, one.term, pre=True, granted=True), 2.0, at)
    due = []
    for name in ("n2", "n4"):
        one.answered(reply(name, one.term, pre=False, granted=False, reason="voted"), 2.0, at)
        due.append(one.due_in(2.0))
    assert one.role is Role.STANDING
    assert due[0] >= 1.0 > SOON[1] >= due[1]


def test_who_hears_nobody_asks_no_more_often() -> None:
    """Cut off from all, or with too few: silence is no refusal."""
    one, at = silenced()
    now, asked = 0.0, 0
    while now < 60.0:
        now += 0.01
        asked += kinds(one.tick(now, at)) == [Ask]
    assert asked <= 60 / 1.5


def test_who_may_not_stand_or_vote_does_neither() -> None:
    one = election()
    assert one.tick(5.0, standing(may_stand=False)) == []
    assert one.tick(9.0, standing(members=electors()[1:])) == []  # not listed
    actions, said = one.asked(request("n2", 5), 9.0, standing(may_vote=False))
    assert (actions, said.granted, said.reason) == ([], False, "may-not-vote")


def test_a_group_of_one_elects_itself() -> None:
    one, at = election(), standing(members=electors(NAMES[:1]))
    assert kinds(one.tick(1.6, at)) == [Ask, Store, Ask, Lead]


def test_a_transfer_needs_no_silence() -> None:
    one, at = election("n2"), standing()
    one.heard(NAMES[0], Term(4), 10.0, at.electors)
    store, ask = one.transfer(10.1, at)
    assert store == Store(Term(5), "n2")
    assert isinstance(ask, Ask)
    assert all(each.transfer and not each.pre for each in ask.requests)


# Whole groups.


@dataclass
class Member:
    """A node of the model: the contents of its disk, and its election while it runs."""

    name: NodeName
    record: NodeRecord
    log: list[int] = field(default_factory=list)
    """The term of each entry; entry 1 first.  All synced."""
    election: Election | None = None
    acked: dict[NodeName, int] = field(default_factory=dict)
    votes: dict[int, str] = field(default_factory=dict)

    @property
    def end(self) -> End:
        return (self.log[-1], len(self.log)) if self.log else (0, 0)


class World:
    """Members, a network and time, all from one seed; asserts what must hold at each step."""

    def __init__(self, seed: int, size: int, *, loses_tails: bool) -> None:
        self.rng = Random(seed)
        self.now = 0.0
        names = [NodeName(f"n{number}") for number in range(1, size + 1)]
        self.members = {name: Member(name, record(name)) for name in names}
        self.electors = electors(names)
        self.mail: list[tuple[float, int, NodeName, object]] = []
        self.sent = 0
        self.cut: set[frozenset[NodeName]] = set()
        self.loss = 0.05
        self.loses_tails = loses_tails
        self.masters: dict[int, NodeName] = {}
        self.committed: list[int] = []
        self.leads = 0
        for name in names:
            self.start(name)

    def start(self, name: NodeName) -> None:
        member = self.members[name]
        member.election = Election(member.record, now=self.now, timeout_s=TIMEOUT, uniform=self.rng.uniform)

    def standing(self, member: Member) -> Standing:
        return Standing(member.end, self.electors)

    def send(self, sender: NodeName, to: NodeName, message: object) -> None:
        if frozenset((sender, to)) not in self.cut and self.rng.random() >= self.loss:
            self.sent += 1
            self.mail.append((self.now + self.rng.uniform(0.001, 0.3), self.sent, to, message))

    def act(self, member: Member, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Store):
                self.store(member, action)
            elif isinstance(action, Ask):
                for each in action.requests:
                    self.send(member.name, NodeName(each.to), each)
            elif isinstance(action, Lead):
                self.lead(member, action.term)

    def store(self, member: Member, action: Store) -> None:
        held = member.record
        assert action.term >= held.term, "a stored term fell"
        if action.voted_for:
            assert member.votes.setdefault(action.term, action.voted_for) == action.voted_for, "two votes in a term"
        member.record = replace(
            held, term=action.term, vote_term=action.term if action.voted_for else 0, voted_for=action.voted_for
        )

    def lead(self, member: Member, term: Term) -> None:
        assert self.masters.setdefault(term, member.name) == member.name, f"two masters of term {term}"
        assert member.log[: len(self.committed)] == self.committed, "a master without a committed entry"
        assert member.record.term == term
        self.leads += 1
        member.log.append(term)
        member.acked = {}

    def deliver(self, to: NodeName, message: object) -> None:
        member = self.members[to]
        one = member.election
        if one is None:
            return
        if isinstance(message, VoteRequest):
            actions, said = one.asked(message, self.now, self.standing(member))
            self.act(member, actions)
            self.send(to, NodeName(message.sender), said)
        elif isinstance(message, VoteReply):
            self.act(member, one.answered(message, self.now, self.standing(member)))
        elif isinstance(message, tuple):
            self.replicate(member, one, *message)

    def replicate(self, member: Member, one: Election, kind: str, sender: NodeName, term: Term, value: object) -> None:
        if term < one.term:
            return
        if kind == "log":
            self.act(member, one.heard(sender, term, self.now, self.standing(member).electors))
            assert isinstance(value, list)
            common = next((at for at, (a, b) in enumerate(zip(member.log, value, strict=False)) if a != b), None)
            if common is not None or len(value) >= len(member.log):
                member.log = list(value)
            self.send(member.name, sender, ("ack", member.name, term, len(value)))
        elif one.role is Role.MASTER and one.term == term:
            assert isinstance(value, int)
            one.heard_from(sender, self.now)
            member.acked[sender] = max(member.acked.get(sender, 0), value)
            self.commit(member, term)

    def commit(self, member: Member, term: Term) -> None:
        ends = sorted([len(member.log), *(member.acked.get(name, 0) for name in self.members if name != member.name)])
        proven = ends[len(ends) - majority(len(ends))]
        if proven > len(self.committed) and member.log[proven - 1] == term:  # Raft §5.4.2
            assert member.log[: len(self.committed)] == self.committed, "a committed entry changed"
            self.committed = member.log[:proven]

    def tick(self) -> None:
        self.now += 0.05
        due = sorted(each for each in self.mail if each[0] <= self.now)
        self.mail = [each for each in self.mail if each[0] > self.now]
        for _, _, to, message in due:
            self.deliver(to, message)
        for member in self.members.values():
            one = member.election
            if one is None:
                continue
            standing, before = self.standing(member), (one.role, one.failed_rounds, one.master)
            rests = one.rests(self.now, standing.electors)
            actions = one.tick(self.now, standing)
            if rests:
                assert (actions, (one.role, one.failed_rounds, one.master)) == ([], before)
            self.act(member, actions)
            if one.role is Role.MASTER:
                if self.rng.random() < 0.3:
                    member.log.append(one.term)
                for name in self.members:
                    if name != member.name:
                        self.send(member.name, name, ("log", member.name, one.term, list(member.log)))

    def fault(self) -> None:
        drawn = self.rng.random()
        name = self.rng.choice(list(self.members))
        member = self.members[name]
        if drawn < 0.35:
            member.election = None
        elif drawn < 0.7:
            for each, held in self.members.items():
                if held.election is None:
                    self.start(each)
        elif drawn < 0.85:
            self.cut = {frozenset((name, other)) for other in self.members if other != name}
        else:
            self.cut = set()
        if self.loses_tails and drawn < 0.05:
            self.lose_tail(member)

    def lose_tail(self, member: Member) -> None:
        """Gives a member a shorter log, which its floor says; one member at a time."""
        whole = all((each.record.floor_term, each.record.floor_vlsn) <= each.end for each in self.members.values())
        if whole and member.log:
            floor_term, floor_vlsn = member.end
            member.record = replace(member.record, floor_term=floor_term, floor_vlsn=floor_vlsn)
            member.log = member.log[: self.rng.randrange(len(member.log))]

    def heal(self) -> None:
        self.cut, self.loss = set(), 0.0
        for name, member in self.members.items():
            if member.election is None:
                self.start(name)


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("loses_tails", [False, True])
@pytest.mark.parametrize("seed", seeds(12))
def test_a_group_has_one_master_a_term_and_loses_nothing_committed(seed: int, size: int, loses_tails: bool) -> None:
    """Raft figure 3: election safety, leader completeness; and a healed group elects and commits again."""
    world = World(seed, size, loses_tails=loses_tails)
    for step in range(1_500):
        if step % 60 == 30:
            world.fault()
        world.tick()
    world.heal()
    before = len(world.committed)
    for _ in range(400):
        world.tick()
    masters = [name for name, each in world.members.items() if each.election and each.election.role is Role.MASTER]
    assert len(masters) == 1, f"seed {seed}: {masters}"
    assert len(world.committed) > before, f"seed {seed}: nothing was committed after the faults"
    assert world.leads >= 1
