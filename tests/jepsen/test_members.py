"""Members that come and go: the next step, its notes, their judgement, and a short real run."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from harness.group.members import Listed, Step
from harness.group.membership import Membership
from harness.group.nodes import SPARE, Group, make_group
from harness.nemesis.plan import WAYS
from harness.nemesis.steps import draw
from harness.ops import numbered, read_history
from harness.report.progress import Progress
from harness.report.results import table
from harness.report.series import Stretch, electorates, without_majority
from harness.report.timeline import write_timeline
from harness.run import Options, run
from hypothesis import given
from hypothesis import strategies as st

from repl import config
from repl.cluster import Cluster, Node
from repl.net.network import AiohttpNetwork
from repl.web import problem
from repl.web.types import Request, Response
from tests.jepsen.test_checks import LOG, SENDS, Line, cut_final, final, poll, rules, seek, status
from tests.repl.client.group import served
from vlsn.errors import NotMaster
from vlsnlog.testing.links import Links

NAMES = ["n1", "n2", "n3", "n4", "n5"]


def listed(electable: Collection[str], secondaries: Collection[str] = (), *, term: int = 1) -> Listed:
    members = {name: name for name in (*electable, *secondaries)}
    return Listed(term, 2, members, frozenset(electable), frozenset())


def taken(step: Step, before: Listed) -> Listed:
    """The list after it; a member that joins has caught up at once."""
    members, electable = dict(before.members), set(before.electable)
    match step.change:
        case "add":
            members[step.name] = step.name
            electable |= set() if step.secondary else {step.name}
        case "remove":
            del members[step.name]
            electable.discard(step.name)
        case "promote":
            electable.add(step.name)
        case "readmit":
            members[step.name] += "'"
    return Listed(before.term, before.vlsn + 1, members, frozenset(electable), frozenset())


@given(seed=st.integers(0, 1 << 32), ways=st.lists(st.sampled_from(WAYS["members"]), min_size=20, max_size=60))
def test_steps_leave_as_many_votes_as_founders_and_wipe_nobody_whose_log_counts(seed: int, ways: list[str]) -> None:
    chance, now, stay = Random(seed), listed(NAMES[:3]), ["n2"]
    for way in ways:
        before = now
        step = draw(way, before, NAMES, votes_min=3, stay=stay, keep=["n4"], chance=chance)
        assert step is not None, "there is always something to do"
        now = taken(step, before)
        assert step.done(before, now) and not step.done(before, before)
        assert len(now.electable) >= 3
        assert "n2" in now.electable
        if step.fresh:
            assert step.name == "n2" if step.change == "readmit" else step.name not in {*before.members, "n4"}
        changed = set(before.members) ^ set(now.members)
        assert changed == ({step.name} if step.change in ("add", "remove") else set())


def test_a_long_story_takes_every_step_that_there_is() -> None:
    chance, now, seen = Random(1), listed(NAMES[:3]), set()
    for turn in range(100):
        way = WAYS["members"][turn % len(WAYS["members"])]
        step = draw(way, now, NAMES, votes_min=3, stay=["n2"], keep=[], chance=chance)
        assert step is not None
        now = taken(step, now)
        seen.add((step.change, step.secondary, step.fresh))
    adds = {("add", secondary, fresh) for secondary in (False, True) for fresh in (False, True)}
    assert seen == adds | {("remove", False, False), ("promote", False, False), ("readmit", False, True)}


def test_nothing_is_drawn_where_nothing_can_be_done() -> None:
    now = listed(NAMES[:3])
    for way in ("add", "remove", "secondary", "promote"):
        assert draw(way, now, NAMES[:3], votes_min=3, stay=["n2"], keep=[], chance=Random(1)) is None
    assert draw("readmit", now, NAMES, votes_min=3, stay=[], keep=[], chance=Random(1)) is None


def test_a_list_is_read_as_a_node_tells_it() -> None:
    def member(name: str, **fields: object) -> dict[str, object]:
        return {"name": name, "url": "", "incarnation": name, "electable": True, "joining": False, **fields}

    document = {"term": 3, "vlsn": 9, "members": [member("n1"), member("n2", electable=False, joining=True)]}
    told = Listed.of(document)
    assert (told.term, told.members) == (3, {"n1": "n1", "n2": "n2"})
    assert (set(told.electable), set(told.joining)) == ({"n1"}, {"n2"})
    assert Step("add", "n4", secondary=True).body("http://h:1") == {
        "change": "add",
        "name": "n4",
        "url": "http://h:1",
        "secondary": True,
    }
    assert Step("remove", "n4").body("") == {"change": "remove", "name": "n4"}


# What is judged.


def begins(change: str, name: str, *members: str) -> Line:
    return _noted("begin", {"change": change, "name": name}, members)


def ends(change: str, name: str, *members: str, struck: bool = True, unknown: bool = False, term: int = 1) -> Line:
    return _noted("end", {"change": change, "name": name, "struck": struck, "unknown": unknown, "term": term}, members)


def _noted(phase: str, value: dict[str, Any], members: Collection[str]) -> Line:
    return (
        "nemesis",
        "info",
        "members",
        {"id": 1, "phase": phase, **value, **({"members": members} if members else {})},
    )


FOUNDED = _noted("founded", {}, NAMES[:3])
CHANGED = [FOUNDED, begins("add", "n4", *NAMES[:3]), ends("add", "n4", *NAMES[:4])]


def test_a_change_that_was_durable_stays() -> None:
    after = [begins("remove", "n1", *NAMES[:4]), ends("remove", "n1", "n2", "n3", "n4")]
    assert rules(CHANGED, after) == set()
    assert rules(CHANGED, begins("remove", "n1", *NAMES[:3])) == {"lost-change"}, "n4 is gone again"
    assert rules(CHANGED, begins("remove", "n1", *NAMES)) == {"lost-change"}, "n5 has come by itself"
    assert rules(FOUNDED, begins("add", "n4", *NAMES[:3]), ends("add", "n4", *NAMES[:3])) == {"lost-change"}
    assert rules(CHANGED, begins("promote", "n4", *NAMES[:4]), ends("promote", "n4", *NAMES[:3])) == {"lost-change"}


def test_a_durable_change_counts_though_nobody_could_tell_the_list_as_it_ended() -> None:
    unseen = [FOUNDED, begins("add", "n4", *NAMES[:3]), ends("add", "n4")]
    assert rules(unseen, begins("remove", "n1", *NAMES[:4])) == set()
    assert rules(unseen, begins("remove", "n1", *NAMES[:3])) == {"lost-change"}
    assert rules(unseen, begins("remove", "n1", *NAMES[:4]), begins("remove", "n1", *NAMES[:3])) == {"lost-change"}


def test_a_change_that_nobody_answered_may_come_later_or_not() -> None:
    lost = [FOUNDED, begins("add", "n4", *NAMES[:3]), ends("add", "n4", struck=False, unknown=True)]
    assert rules(lost, begins("remove", "n1", *NAMES[:4])) == set()
    assert rules(lost, begins("remove", "n1", *NAMES[:3])) == set()
    assert rules(lost, begins("remove", "n1", *NAMES[:2])) == {"lost-change"}


def test_who_was_removed_leads_in_no_later_term() -> None:
    removed = [*CHANGED, begins("remove", "n1", *NAMES[:4]), ends("remove", "n1", "n2", "n3", "n4", term=2)]
    assert rules(removed, status("n1", "MASTER", 2)) == set(), "it has yet to hand over"
    assert rules(removed, status("n1", "MASTER", 3)) == {"stranger-leads"}
    again = begins("add", "n1", "n2", "n3", "n4")
    assert rules(removed, again, status("n1", "MASTER", 3)) == set()


def test_a_node_that_is_no_member_any_more_is_held_against_the_log_as_far_as_it_goes() -> None:
    members = _noted("end", {}, ["n2", "n3"])
    readers = [seek("r1", 1, "n1"), poll("r1", *LOG[:3]), seek("r2", 1, "n1", "n2"), poll("r2", *LOG)]
    short: Line = (*cut_final("n1", *LOG[:3])[:3], {**cut_final("n1", *LOG[:3])[3], "member": False})
    assert rules(SENDS, members, readers, final("n2", *LOG), final("n3", *LOG), short) == set()
    other: Line = (*short[:3], {**short[3], "numbers": [0, 0, 9]})
    assert "logs-differ" in rules(SENDS, members, readers, final("n2", *LOG), final("n3", *LOG), other)
    assert rules(SENDS, readers, final("n2", *LOG), final("n3", *LOG)) == {"unseen"}, "it was a member then"


def test_the_timeline_counts_the_votes_of_the_members_as_they_were() -> None:
    stretches = [Stretch(name, 0.0, 10.0, "REPLICA") for name in NAMES[:2]]
    stretches += [Stretch(name, 0.0, 10.0, "UNREACHABLE") for name in NAMES[2:]]
    assert without_majority(stretches, [], 10.0) == [(0.0, 10.0)]
    assert without_majority(stretches, [], 10.0, [(0.0, NAMES[:3]), (4.0, NAMES[:4])]) == [(4.0, 10.0)]
    history = numbered([("group", "info", "members", {"phase": "founded", "electable": ["n1"]})])
    assert electorates(history) == [(0.0, ["n1"])]


# What is ordered.


async def test_a_change_that_was_answered_is_done_though_nobody_can_say_so_afterwards(tmp_path: Path) -> None:
    """The master took it, and was lost: the list that comes next has to show it."""
    document = {"state": "MASTER", "term": 1, "vlsn": 2, "durable": True}
    members = [{"name": name, "incarnation": name, "electable": True, "joining": False} for name in ("n1", "n2")]
    asked: list[str] = []

    async def handler(request: Request) -> Response:
        asked.append(f"{request.method} {request.path}")
        if "POST /v1/admin/group" in asked[:-1]:
            return problem.response(NotMaster("nobody leads"))
        return Response(200, body=msgspec.json.encode({**document, "members": members}))

    network = AiohttpNetwork()
    try:
        async with served(handler) as listener:
            nodes = [Node(name, tmp_path / name, listener.url) for name in ("n1", "n2")]
            for node in nodes:
                node.directory.mkdir()
                node.config_path.write_text("[members]\n")
            membership = Membership(Group(Cluster(tmp_path, nodes, network), Links(dict, own_pid=0)), network)
            now = asyncio.get_running_loop().time
            before = await membership.settled(now() + 30)
            assert before is not None and list(before.members) == ["n1", "n2"]
            ordered = await membership.order(Step("remove", "n2"), before, now() + 30)
            assert ordered.done and asked[-1] == "POST /v1/admin/group"
            assert await membership.settled(now() + 0.5) is None
    finally:
        await network.close()


# Real nodes.


@pytest.mark.real
async def test_a_start_that_takes_too_long_says_what_each_node_said_last(tmp_path: Path) -> None:
    network = AiohttpNetwork()
    group = await make_group(tmp_path, network, nodes=3, settings={})
    try:
        with pytest.raises(TimeoutError, match=r"no master takes appends 0 s after the start: n1: .*; n2: .*; n3: "):
            await group.start(seconds=0.0)
    finally:
        group.cluster.kill()
        await group.close()
        await network.close()


@pytest.mark.real
async def test_founders_are_told_of_founders_and_spares_of_themselves_too(tmp_path: Path) -> None:
    network = AiohttpNetwork()
    group = await make_group(tmp_path, network, nodes=3, settings={}, spares=2)
    try:

        def told(name: str) -> dict[str, str]:
            members = config.load_node_config(path=group.node(name).config_path, environment={}).members
            return {str(member): url for member, url in members.items()}

        assert group.founders == NAMES[:3] and [name for name in NAMES if group.used(name)] == NAMES[:3]
        assert list(told("n1")) == NAMES[:3]
        assert told("n5") == {name: group.member_urls[name] for name in ("n1", "n2", "n3", "n5")}
        group.are_members(["n1", "n3", "n4"], ["n1", "n3"])
        assert (group.listed, group.electable) == (["n1", "n3", "n4"], ["n1", "n3"])
        assert list(told("n1")) == ["n1", "n3", "n4"]
        assert list(told("n2")) == ["n1", "n2", "n3", "n4"]
        group.release()
        assert not any(group.running(name) for name in NAMES[3:]), "a spare that was never used stays down"
        group.start_again(["n4"], SPARE)
        assert group.used("n4") and group.running("n4")
    finally:
        group.cluster.kill()
        await group.close()
        await network.close()


@pytest.mark.real
def test_a_short_run_in_which_members_come_and_go_finds_nothing_wrong(tmp_path: Path) -> None:
    options = Options(
        workload="append",
        kinds=("members", "transfer"),
        nodes=3,
        seconds=12.0,
        seed=3,
        rate=300.0,
        writers=8,
        interval_s=4.0,
        audit=False,
    )
    outcome = asyncio.run(run(options, tmp_path, progress=Progress(quiet=True)))
    lines = "\n".join(table(outcome))
    assert not outcome.found, lines
    needless = ("acknowledged appends", "no transfer struck")
    assert [why for why in outcome.lacks if not any(each in why for each in needless)] == [], lines
    history = read_history(tmp_path / "history.jsonl")
    ordered = [op.value for op in history if op.f == "members" and op.process == "nemesis"]
    assert any(value.get("struck") for value in ordered)
    refused = [op.value["status"] for op in history if op.f == "transfer" and "status" in op.value]
    assert 415 not in refused
    assert set(outcome.members) == set(next(op for op in reversed(history) if op.f == "members").value["members"])
    write_timeline(outcome, history, tmp_path / "timeline.html")
    assert 'class="mark members"' in (tmp_path / "timeline.html").read_text()
