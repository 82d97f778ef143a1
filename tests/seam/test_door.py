"""Role changes pass through one function: a vote is compared with the drained log, and later acknowledgements wait."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from replica import feed
from replica.matchpoint_check import describe
from tests.fakes.loop import run, virtual
from tests.seam.nodes import JSON, Group
from vlsn.format.feed_messages import Syncup, TermRun
from vlsn.ids import Term
from vlsn.index.range import VlsnRange

SLOW_S = (0.4, 0.4)


async def vote(group: Group, to: str, sender: str, **fields: Any) -> dict[str, Any]:
    """Asks ``to`` for its vote as ``sender``, as in a transfer that the master has announced."""
    for node in group.nodes.values():
        if node.open is not None:
            node.open.opened.announced = Term(int(fields["term"]) - 1), sender
    body = {
        "group": "sim",
        "sender": sender,
        "incarnation": f"{group.nodes[sender].member.incarnation:016x}",
        "to": to,
        "pre": False,
        "transfer": True,  # passes though a master is heard
        **fields,
    }
    response = await group.client.request(
        "POST", f"{group.url(to)}/v1/peer/vote", headers=JSON, body=msgspec.json.encode(body), timeout_s=10.0
    )
    assert response.status == 200, bytes(response.body)
    answer: dict[str, Any] = msgspec.json.decode(bytes(response.body))
    return answer


@pytest.mark.parametrize("behind", [0, 1])
@virtual
async def test_a_vote_is_compared_with_all_that_was_acknowledged(behind: int) -> None:
    """A block is being written by n2 when n2 is asked for its vote, and must be compared. Otherwise n2 would
    acknowledge it for the old term after a vote for a log without it."""
    group = Group(31)
    await group.start()
    await group.serving()
    status, answer = await group.append(b"everywhere", acks="all")
    assert status == 200
    term, synced = answer["term"], answer["last"]
    group.machines["n2"].process.threads.latency_s = SLOW_S  # type: ignore[union-attr]
    group.net.block("n1", "n3")
    status, answer = await group.append(b"on its way", acks="none")
    assert status == 200
    await group.until(lambda: group.nodes["n2"].opened().log.view.allocated > synced, "n2 has it, and not on its disk")
    assert group.nodes["n2"].opened().log.view.range.last_sync == synced
    said = await vote(group, "n2", "n3", term=term + 1, last_term=term, last_vlsn=synced + 1 - behind)
    assert said["last_vlsn"] == synced + 1
    assert (said["granted"], said["reason"]) == ((False, "shorter-log") if behind else (True, ""))
    assert group.nodes["n2"].opened().log.node_file.record.term == term + 1
    group.net.heal()
    await group.stop()


@virtual
async def test_nothing_is_acknowledged_for_an_old_term_behind_a_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(32)
    await group.start()
    await group.serving()
    status, answer = await group.append(b"everywhere", acks="all")
    assert status == 200
    term, last = answer["term"], answer["last"]
    group.net.block("n1", "n3")
    group.net.block("n3", "n1")
    confirming, confirmed = group.nodes["n2"].confirming, asyncio.Event()
    hands_over = confirming.hands_over

    async def and_then(*asked: Any, **fields: Any) -> bool:
        try:
            return await hands_over(*asked, **fields)
        finally:
            confirmed.set()

    monkeypatch.setattr(confirming, "hands_over", and_then)
    asked = asyncio.create_task(vote(group, "n2", "n3", term=term + 1, last_term=term, last_vlsn=last))
    await confirmed.wait()
    waiting = asyncio.create_task(group.append(b"too late", to="n1"))
    assert (await asked)["granted"]
    status, answer = await waiting
    leader = group.nodes["n1"].member.role
    assert leader is None or getattr(leader, "term", 0) != term or group.nodes["n1"].dtvlsn() <= last
    assert status != 200 or not answer["durable"]
    group.net.heal()
    await group.stop()


def test_no_range_is_sent_while_a_rollback_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The feed that ordered the rollback has ended with its role.  The next feed would report blocks that are being
    rolled back, and acknowledge a matchpoint that is gone then; or its range and term runs would not agree."""
    said: list[bool] = []
    """Notes for each range that n1 has sent whether a rollback was under way."""

    async def main() -> None:
        group = Group(33)
        await group.start()
        await group.serving()
        assert (await group.append(b"everywhere", acks="all"))[0] == 200
        group.net.split(["n1", "client"], ["n2", "n3"])
        assert (await group.append(b"who knows", to="n1"))[0] == 504
        await group.until(lambda: group.master != "n1", "another one leads")
        node, process = group.nodes["n1"], group.machines["n1"].process
        log = node.opened().log
        assert process is not None

        def described(span: VlsnRange, stored_term: int, term_runs: list[TermRun]) -> Syncup:
            if term_runs is log.view.history.term_runs:
                said.append(log.view.rollbacks % 2 == 1)
            return describe(span, stored_term, term_runs)

        monkeypatch.setattr(feed, "describe", described)
        process.threads.latency_s = SLOW_S
        group.net.heal()
        await group.until(lambda: log.view.rollbacks % 2 == 1, "n1 rolls back")
        other = next(name for name in ("n2", "n3") if name != group.master)
        term, before = group.nodes[group.master].opened().log.node_file.record.term, len(said)
        await vote(group, "n1", other, term=term + 1, last_term=term, last_vlsn=log.view.range.last)
        process.threads.latency_s = (0.0, 0.000_5)
        await group.until(lambda: len(said) > before and node.state in ("REPLICA", "MASTER"), "n1 is back", 60.0)
        assert said == [False] * len(said)
        await group.stop()
        assert not group.fatal

    run(main())


def test_nobody_asks_for_votes_while_its_log_is_rolled_back() -> None:
    """The end of its log is being rolled back; if elected, the node would seal after that end."""
    asked: list[bool] = []
    """Notes for each vote that n1 has asked for whether a rollback was under way."""

    async def main() -> None:
        group = Group(35)
        await group.start()
        await group.serving()
        assert (await group.append(b"everywhere", acks="all"))[0] == 200
        group.net.split(["n1", "client"], ["n2", "n3"])
        assert (await group.append(b"who knows", to="n1"))[0] == 504
        await group.until(lambda: group.master != "n1", "another one leads")
        process, log = group.machines["n1"].process, group.nodes["n1"].opened().log
        assert process is not None
        process.threads.latency_s = (2.0, 2.0)
        group.net.heal()
        await group.until(lambda: log.view.rollbacks % 2 == 1, "n1 rolls back")
        group.net.on_said = lambda source, target, path, body: (
            asked.append(log.view.rollbacks % 2 == 1) if target == "n1" and path == "/v1/peer/vote" else None
        )
        died = group.master
        group.kill(died)
        began = group.loop.time()
        await group.until(lambda: log.view.rollbacks % 2 == 0, "it is rolled back", 60.0)
        assert group.loop.time() - began > 4.0  # longer than any election timeout
        process.threads.latency_s = (0.0, 0.000_5)
        await group.serving()
        await asyncio.sleep(5.0)
        group.kill(next(name for name in ("n2", "n3") if name != died))
        await group.start(died)
        await group.until(lambda: bool(asked), "n1 asks, of the other's silence")
        await group.serving()
        assert asked == [False] * len(asked)
        await group.stop()
        assert not group.fatal

    run(main())


@pytest.mark.parametrize("size", [3, 5])
@virtual
async def test_whoever_has_stored_a_higher_term_than_a_master_with_a_majority_finds_back(size: int) -> None:
    """The node gave its vote, or stood, as that master was elected. The other members have a master and refuse every
    vote, and the node may not accept a feed of a term below its stored one. So the master has to learn of the term, and
    step down."""
    group = Group(33, size)
    await group.start()
    await group.serving()
    _, answer = await group.append(b"everywhere", acks="all")
    term, last, leads = answer["term"], answer["last"], group.master
    voter, candidate = [name for name in group.names if name != leads][:2]
    said = await vote(group, voter, candidate, term=term + 1, last_term=term, last_vlsn=last)
    assert said["granted"]

    def all_are_back() -> bool:
        terms = {node.opened().log.node_file.record.term for node in group.nodes.values()}
        states = sorted(group.state(name) for name in group.names)
        return len(terms) == 1 and min(terms) > term and states == ["MASTER", *["REPLICA"] * (size - 1)]

    await group.until(all_are_back, "all are back, in no term below the one that was stored")
    assert (await group.append(b"again", acks="all"))[0] == 200
    await group.stop()
    assert not group.fatal
