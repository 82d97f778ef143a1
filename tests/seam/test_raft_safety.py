"""The requirements of the Raft paper and its dissertation, by section, on whole nodes in virtual time.

Figure 3 of the paper names five properties; each has its test here. Other tests cover what the sections require of
elections, failing followers, transfers and returning nodes.  The pure core's rules are in
``tests/repl/elect/test_election.py``, the commit rule in ``tests/repl/lead/test_acks.py``; ``tests/sim`` checks all of
them under random schedules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.fakes.loop import run
from tests.fakes.seeds import seeds
from tests.seam.nodes import Group
from vlsn.format.block import decode_header
from vlsn.write.local_log import LocalLog


def played(story: Callable[[Group], Awaitable[None]], seed: int, size: int = 3, **settings: Any) -> None:
    async def main() -> None:
        group = Group(seed, size, **settings)
        await group.start()
        await group.serving()
        await story(group)
        await group.stop()
        assert not group.fatal

    run(main())


def blocks(log: LocalLog) -> list[tuple[int, int, bytes]]:
    """Returns (term, first VLSN, bytes) of every visible synced block."""
    span = log.view.range
    found: list[tuple[int, int, bytes]] = []
    mapping = log.view.index.at_or_before(span.first)
    assert mapping is not None
    reader, at, start = log.view.reader(), int(span.first), mapping[1]
    while at <= span.last_sync:
        read = reader.blocks(at, start=start, upto_vlsn=span.last_sync, bytes_max=1 << 20)
        for block in read.data:
            header = decode_header(block)
            found.append((header.term, header.first_vlsn, bytes(block)))
        at, start = read.next_vlsn, read.next_lsn
    reader.close()
    return found


async def equal(group: Group) -> None:
    """Waits until every node is at the master's end, and knows it to be durable."""

    def settled() -> bool:
        logs = [node.log for node in group.nodes.values()]
        lasts = {log.view.range.last for log in logs if log is not None}
        return None not in logs and len(lasts) == 1 and all(node.dtvlsn() in lasts for node in group.nodes.values())

    await group.until(settled, "all logs have one end")


@pytest.mark.parametrize("seed", seeds(4))
@pytest.mark.parametrize("size", [3, 5])
def test_election_safety(seed: int, size: int) -> None:
    """§5.2, figure 3: at most one leader in a term, however often elections are split, interrupted and repeated."""
    leaders: dict[int, str] = {}

    async def story(group: Group) -> None:
        async def watch() -> None:
            while True:
                for name, node in group.nodes.items():
                    term = node.open.electing.leads if node.open is not None else None
                    if term is not None:
                        assert leaders.setdefault(term, name) == name, f"two leaders of term {term}"
                await asyncio.sleep(0.005)

        watching = asyncio.create_task(watch())
        for _ in range(6):
            group.net.split([group.master], [name for name in group.names if name != group.master] + ["client"])
            await asyncio.sleep(group.rng.uniform(0.5, 3.0))
            one, other = group.rng.sample(group.names, 2)
            group.net.heal()
            group.net.block(one, other)
            await asyncio.sleep(group.rng.uniform(0.2, 1.5))
            group.net.heal()
        await group.serving()
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching

    played(story, seed, size)
    assert len(leaders) >= 4


@pytest.mark.parametrize("seed", seeds(3))
def test_leader_append_only(seed: int) -> None:
    """§5.3, figure 3: a leader never overwrites or deletes entries of its own log; it only appends."""

    async def story(group: Group) -> None:
        for round_ in range(4):
            leader = group.master
            node = group.nodes[leader]
            log = node.opened().log
            held: list[tuple[int, int, bytes]] = []
            for number in range(10):
                await group.appended(b"%d.%d" % (round_, number))
                if not node.member.is_master():
                    break
                now = blocks(log)
                assert now[: len(held)] == held
                held = now
            group.kill(leader, power=round_ % 2 == 1)
            await asyncio.sleep(group.rng.uniform(0.0, 1.0))
            await group.start(leader)
            await group.serving()

    played(story, seed)


@pytest.mark.parametrize("seed", seeds(4))
def test_log_matching(seed: int) -> None:
    """§5.3, figure 3: two logs with a block of one term at one VLSN are equal up to there, also logs that differ later
    and were not repaired yet."""

    async def story(group: Group) -> None:
        for round_ in range(5):
            leader = group.master
            for number in range(5):
                await group.appended(b"%d.%d" % (round_, number))
            group.net.split([leader, "client"], [name for name in group.names if name != leader])
            for number in range(3):
                await group.append(b"lost? %d.%d" % (round_, number), to=leader, acks="none")
            await group.until(lambda leader=leader: group.master != leader, "another one leads")  # type: ignore[misc]
            logs = {name: blocks(node.opened().log) for name, node in group.nodes.items()}
            for one in logs.values():
                for other in logs.values():
                    common = {(term, first) for term, first, _ in one} & {(term, first) for term, first, _ in other}
                    upto = max(first for _, first in common)
                    assert [each for each in one if each[1] <= upto] == [each for each in other if each[1] <= upto]
            group.net.heal()
            await group.serving()
        await group.appended(b"the end")
        await equal(group)
        assert len({tuple(blocks(node.opened().log)) for node in group.nodes.values()}) == 1

    played(story, seed)


@pytest.mark.parametrize("seed", seeds(6))
def test_leader_completeness_by_the_election_restriction(seed: int) -> None:
    """§5.4.1, §5.4.3, figure 3: a node without a committed entry is not elected, even if it stands first."""

    async def story(group: Group) -> None:
        await group.appended(b"everywhere")
        leader = group.master
        behind, ahead = group.rng.sample([name for name in group.names if name != leader], 2)
        group.net.split([behind], [leader, ahead, "client"])
        told = [await group.appended(b"not at %s %d" % (behind.encode(), number)) for number in range(5)]
        group.kill(leader)
        group.net.heal()
        await group.serving()
        assert group.master == ahead
        assert await group.appended(b"on") > told[-1]
        await group.until(lambda: group.nodes[behind].dtvlsn() > told[-1], "it gets what it lacked")
        read = await group.read(behind)
        assert set(told) <= set(read)

    played(story, seed)


@pytest.mark.parametrize("seed", seeds(4))
def test_a_new_leader_commits_entries_of_earlier_terms_by_one_of_its_own(seed: int) -> None:
    """§5.4.2: an entry of an earlier term is committed once an entry of the current one is on a majority. The TERM
    entry that a leader seals at once is that entry, so nothing waits for a client."""

    async def story(group: Group) -> None:
        leader = group.master
        others = [name for name in group.names if name != leader]
        group.net.split([leader, others[0], "client"], [others[1]])
        before = group.nodes[leader].dtvlsn()
        group.net.block(others[0], leader)  # what it acknowledges does not come back
        status, answer = await group.append(b"sealed in the old term", acks="none")
        assert (status, answer["durable"]) == (200, False)
        first = answer["first"]
        await group.until(lambda: group.nodes[others[0]].opened().log.view.range.last >= first, "one replica has it")
        assert group.nodes[leader].dtvlsn() == before < first
        group.kill(leader)
        group.net.heal()
        await group.serving(others[0])
        log = group.nodes[others[0]].opened().log
        assert log.view.history.term_of(log.view.range.last) > log.view.history.term_of(first) > 0
        assert group.nodes[others[0]].dtvlsn() == log.view.range.last > first
        assert (await group.read(others[0]))[first] == b"sealed in the old term"

    played(story, seed)


@pytest.mark.parametrize("seed", seeds(4))
def test_state_machine_safety(seed: int) -> None:
    """§5.4.3, figure 3: no two readers of any node, at any time, see different entries at one VLSN."""
    shown: dict[int, bytes] = {}

    async def story(group: Group) -> None:
        async def watch() -> None:
            while True:
                for name in list(group.nodes):
                    node = group.nodes.get(name)
                    if node is None or node.open is None:
                        continue
                    page = await node.opened().reads.page(None, limit=1000, bytes_max=1 << 20, all_kinds=True)
                    for entry in page.entries:
                        assert shown.setdefault(entry.vlsn, bytes(entry.value)) == bytes(entry.value), entry.vlsn
                await asyncio.sleep(0.05)

        watching = asyncio.create_task(watch())
        for number in range(20):
            if number % 5 == 4:
                group.net.split([group.master], [name for name in group.names if name != group.master])
            await group.append(b"%d" % number, acks=group.rng.choice(("none", "majority")))
            if number % 5 == 2:
                group.net.heal()
                await group.serving()
        group.net.heal()
        await group.serving()
        await group.appended(b"the end")
        await equal(group)
        await asyncio.sleep(0.2)
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching

    played(story, seed)
    assert b"the end" in shown.values()


@pytest.mark.parametrize("seed", seeds(3))
def test_followers_that_fail_are_tried_for_ever_and_requests_may_come_twice(seed: int) -> None:
    """§5.5: a follower that crashes after its write and before its answer has each entry once."""

    async def story(group: Group) -> None:
        told = {}
        for number in range(12):
            leader = group.master
            victim = group.rng.choice([name for name in group.names if name != leader])
            disk = group.machines[victim].disk
            disk.on_stop = lambda victim=victim: group.kill(victim)
            disk.stop_at(len(disk.calls) + group.rng.randrange(1, 6))
            told[await group.appended(b"%d" % number)] = b"%d" % number
            await asyncio.sleep(0.3)
            disk.mend()
            if victim not in group.nodes:
                await group.start(victim)
                await group.until(lambda victim=victim: group.state(victim) == "REPLICA", "it is fed again")  # type: ignore[misc]
        await equal(group)
        for name in group.names:
            assert await group.read(name) == told

    played(story, seed)


@pytest.mark.parametrize("seed", seeds(4))
def test_a_leader_is_elected_within_a_few_timeouts(seed: int) -> None:
    """§5.6: broadcast time ≪ election timeout ≪ time between failures, and the group makes progress."""

    async def story(group: Group) -> None:
        for _ in range(5):
            leader = group.master
            group.net.split([leader], [name for name in group.names if name != leader] + ["client"])
            began = group.loop.time()
            await group.until(lambda leader=leader: group.master != leader, "another one leads", limit_s=6.0)  # type: ignore[misc]
            assert group.loop.time() - began < 6.0
            group.net.heal()
            await group.serving()

    played(story, seed, 5)


@pytest.mark.parametrize("seed", seeds(4))
def test_handing_over(seed: int) -> None:
    """Dissertation §3.10: the leader brings a successor up to date and asks it to stand; no node waits for a
    timeout."""

    async def story(group: Group) -> None:
        term = group.nodes[group.master].opened().log.node_file.record.term
        for to in ("n2", "n3", "n1"):
            before = await group.appended(b"before " + to.encode())
            began = group.loop.time()
            answer = await group.nodes[group.master].services.administration.transfer(to)
            await group.serving(to)
            after = await group.appended(b"after " + to.encode())
            assert group.loop.time() - began < 0.5
            assert answer["to"] == to
            assert after == before + 2  # nothing but the new term's own entry lies between
            term += 1
            assert group.nodes[to].opened().log.node_file.record.term == term

    played(story, seed)


@pytest.mark.parametrize("seed", seeds(4))
def test_who_was_cut_off_unseats_nobody(seed: int) -> None:
    """Dissertation §9.6, pre-vote: a server that returns from a partition neither raises terms nor ends a
    leadership."""

    async def story(group: Group) -> None:
        leader = group.master
        term = group.nodes[leader].opened().log.node_file.record.term
        away = group.rng.choice([name for name in group.names if name != leader])
        for _ in range(3):
            group.net.split([away], [name for name in group.names if name != away] + ["client"])
            await asyncio.sleep(group.rng.uniform(5.0, 20.0))
            await group.appended(b"without it")
            group.net.heal()
            await asyncio.sleep(group.rng.uniform(0.5, 5.0))
        await equal(group)
        assert group.master == leader
        assert {node.opened().log.node_file.record.term for node in group.nodes.values()} == {term}

    played(story, seed)
