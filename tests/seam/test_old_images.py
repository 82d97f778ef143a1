"""Old images of disks come back while a member with newer reports is up; and starts with the right disk."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from repl.group.hello import answer_of
from repl.group.old_images import NOTHING, Told, both
from repl.group.peers import TELL_S, heard_in
from repl.repair.restoring import Peer
from tests.fakes.loop import VirtualLoop, run, virtual
from tests.fakes.seeds import seeds
from tests.seam.nodes import Group
from tests.seam.test_membership import changed, electable, fed, has_all, incarnation, listed, told
from vlsn.errors import NotFound
from vlsn.format.segment import FIRST_FRAME, segment_name
from vlsn.ids import NodeName, Vlsn
from vlsn.repair.restore_messages import LOOK
from vlsn.state.holds import Owner


async def started(seed: int) -> tuple[Group, dict[int, bytes]]:
    """Makes three nodes that have all of ten entries."""
    group = Group(seed)
    await group.start()
    await group.serving()
    await fed(group, 2)
    entries = await told(group, 10)
    await has_all(group, entries)
    return group, entries


async def back(group: Group, name: str) -> None:
    """Waits until ``name`` is up, and listed with its present incarnation."""
    await group.start(name)
    await group.until(lambda: group.nodes[name].member.recognised, f"{name} has asked")
    await group.serving()
    await group.until(lambda: listed(group)[name].incarnation == incarnation(group, name), f"{name} is listed")
    await electable(group, name)


async def a_vote_forgotten(seed: int) -> tuple[Group, dict[int, bytes], str]:
    """Returns the name of a node that is down, whose disk forgot its vote for the present master."""
    group, entries = await started(seed)
    old = group.master
    images = {name: group.machines[name].image() for name in group.names if name != old}
    group.kill(old)
    await group.until(lambda: group.master != old, "another one leads")
    await group.serving()
    await group.start(old)
    voter = next(name for name in images if name != group.master)
    assert group.nodes[voter].opened().log.node_file.record.voted_for == group.master
    await group.until(lambda: group.state(old) == "REPLICA", "the old master follows")
    group.kill(voter)
    group.machines[voter].put_back(images[voter])
    return group, entries, voter


@virtual
async def test_an_old_image_becomes_another_incarnation_and_is_admitted_again() -> None:
    group, entries = await started(61)
    name = next(each for each in group.names if each != group.master)
    image = group.machines[name].image()
    before = incarnation(group, name)
    entries |= await told(group, 20, "later ")
    await has_all(group, entries)
    group.kill(name)
    group.machines[name].put_back(image)
    await back(group, name)
    assert group.nodes[name].member.counts.old_images == 1 and incarnation(group, name) != before
    assert group.nodes[group.master].member.counts.readmitted == 1
    assert not group.nodes[name].restoration.history  # its log was of use
    await has_all(group, entries)
    group.kill(name)
    await back(group, name)
    assert group.nodes[name].member.counts.old_images == 0
    await group.stop()
    assert not group.fatal


@virtual
async def test_an_image_of_before_a_vote_is_found_out() -> None:
    group, entries, voter = await a_vote_forgotten(62)
    await back(group, voter)
    assert group.nodes[voter].member.counts.old_images == 1
    await has_all(group, entries)
    await group.stop()
    assert not group.fatal


@virtual
async def test_an_image_that_is_restored_before_it_was_compared_is_found_out() -> None:
    """A restore stores its provider's term, which must not look like the vote that the image has forgotten."""
    group, entries, voter = await a_vote_forgotten(61)
    before = listed(group)[voter].incarnation
    group.machines[voter].disk.flip_bit(f"/{voter}/{segment_name(1)}", FIRST_FRAME, 3)
    group.net.split([voter], [name for name in group.names if name != voter])
    await group.start(voter)
    await group.until(lambda: group.state(voter) == "DAMAGED", "it does not open")
    group.nodes[voter].restoration.want("a person asked for it")
    await group.until(lambda: group.state(voter) == "RESTORING", "it looks for a provider")
    group.net.heal()
    await group.until(lambda: group.nodes[voter].member.recognised, "it has asked")
    assert group.nodes[voter].restoration.history
    assert group.nodes[voter].member.counts.old_images == 1 and incarnation(group, voter) != before
    await electable(group, voter)
    await has_all(group, entries)
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("lacking", [False, True])
@virtual
async def test_a_damaged_image_is_who_it_was_if_a_restore_brought_back_what_it_acknowledged(lacking: bool) -> None:
    """It was restored before it could ask. A member without those entries cannot restore them; then it is another."""
    group, entries = await started(69)
    master = group.master
    forgets, third = (name for name in group.names if name != master)
    image = group.machines[forgets].image()
    if lacking:
        group.net.split([third], [master])
    entries |= await told(group, 20, "later ")
    group.kill(forgets)
    group.machines[forgets].put_back(image)
    group.machines[forgets].disk.flip_bit(f"/{forgets}/{segment_name(1)}", FIRST_FRAME, 3)
    group.net.split([forgets], [master, third])
    before = listed(group)[forgets].incarnation
    await group.start(forgets)
    node = group.nodes[forgets]
    await group.until(lambda: node.state == "DAMAGED", "it does not open")
    node.restoration.want("a person asked for it")
    await group.until(lambda: node.state == "RESTORING", "it looks for a provider")
    group.net.heal()
    if lacking:
        group.net.split([master], [third, forgets])
    await group.until(lambda: bool(node.restoration.history), "it is restored")
    group.net.heal()
    await group.until(lambda: node.member.recognised, "it has asked")
    assert node.member.counts.old_images == lacking
    assert (incarnation(group, forgets) == before) is not lacking
    await electable(group, forgets)
    await has_all(group, entries)
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_voter_that_was_rolled_back_is_no_old_image() -> None:
    """Its log was longer than the log of its candidate, whose last term was later."""
    group, entries = await started(66)
    voter = group.master
    left = [name for name in group.names if name != voter]
    group.net.split([voter, "client"], left)
    for number in range(20):
        assert (await group.append(b"alone %d" % number, to=voter, acks="none"))[0] == 200
    longer = group.nodes[voter].opened().log.view.range.last
    await group.until(lambda: group.master != voter, "another one leads")
    await group.serving()
    winner = group.master
    group.kill(*group.names)
    group.net.heal()
    await group.start(winner, voter)
    said = [NOTHING]

    def follows() -> bool:
        node = group.nodes[voter]
        if node.open is not None and node.open.opened.told() != said[-1]:
            said.append(node.open.opened.told())
        return node.state == "REPLICA"

    await group.until(follows, "it follows")
    await group.serving(winner)
    term = group.nodes[winner].opened().log.node_file.record.term
    record = group.nodes[voter].opened().log.node_file.record
    assert (record.voted_for, record.vote_term) == (winner, term)
    log = group.nodes[voter].opened().log
    assert log.view.range.last < longer
    told_of = [told for told in said if told.term == term]
    assert Told(record.sequence, term) in told_of  # the vote, before the feed
    assert all(log.view.history.term_of(Vlsn(told.vlsn)) == told.block_term for told in told_of)
    group.kill(voter)
    await back(group, voter)
    assert group.nodes[voter].member.counts.old_images == 0
    await has_all(group, entries)
    await group.stop()
    assert not group.fatal


@virtual
async def test_what_an_old_image_has_forgotten_is_not_lost_with_it() -> None:
    """An entry is on the master, which dies, and on a node that comes back with an old image. The third node received
    that node's promise in time. Together the two would be a majority without that entry."""
    group, entries = await started(63)
    master = group.master
    forgets, lacks = (name for name in group.names if name != master)
    image = group.machines[forgets].image()
    group.net.block(lacks, master)
    group.net.block(master, lacks)
    lacking = group.nodes[lacks].opened().log.view.range.last
    entries |= await told(group, 20, "without the third ")
    await asyncio.sleep(TELL_S + 1)
    assert group.nodes[lacks].opened().log.view.range.last == lacking < max(entries)
    group.kill(master, forgets)
    group.net.heal()
    group.machines[forgets].put_back(image)
    await group.start(forgets)
    await group.until(lambda: group.nodes[forgets].member.counts.old_images == 1, "the image is found out")
    await asyncio.sleep(20.0)
    assert not any(node.member.is_master() for node in group.nodes.values())
    await group.start(master)
    await group.serving()
    await has_all(group, entries)
    await group.until(lambda: listed(group)[forgets].incarnation == incarnation(group, forgets), "it is admitted")
    await group.stop()
    assert not group.fatal


@virtual
async def test_the_answer_of_an_empty_node_is_not_enough() -> None:
    """A wiped member answers at once, and has received no promise; the member with the promise is slow to answer."""
    group, entries = await started(71)
    wiped, forgets = (name for name in group.names if name != group.master)
    image = group.machines[forgets].image()
    entries |= await told(group, 20, "later ")
    await has_all(group, entries)
    group.kill(wiped, forgets)
    group.machine(wiped)
    group.machines[forgets].put_back(image)
    group.net.split([group.master], [wiped, forgets])
    await group.start(wiped, forgets)
    await asyncio.sleep(7.0)  # a silent member is waited for no longer than 5 s
    assert not group.nodes[forgets].member.recognised
    group.net.heal()
    await group.until(lambda: group.nodes[forgets].member.recognised, "it has asked")
    assert group.nodes[forgets].member.counts.old_images == 1
    await group.stop()
    assert not group.fatal


@virtual
async def test_who_is_named_by_the_settings_alone_is_not_waited_for() -> None:
    """The listed members have answered, and are empty; at an additional address in the settings no node listens."""
    group, _ = await started(75)
    kept, *wiped = group.names
    group.kill(*group.names)
    for name in wiped:
        group.machine(name)
    await group.start(*wiped)
    group.names.append("m1")
    await group.start(kept)
    await group.until(lambda: group.nodes[kept].member.recognised, "it has asked")
    group.names.remove("m1")
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_node_that_nobody_answers_neither_stands_nor_votes() -> None:
    group, _ = await started(64)
    group.kill(*group.names)
    await group.start("n1")
    await asyncio.sleep(10.0)
    node = group.nodes["n1"]
    assert (node.state, node.member.recognised) == ("UNKNOWN", False)
    assert node.member.reason.startswith("waits for a member")
    assert node.opened().log.node_file.record.term == 1
    await group.start("n2")
    await group.serving()
    await group.stop()
    assert not group.fatal


@virtual
async def test_the_only_electable_member_asks_nobody() -> None:
    group, _ = await started(65)
    master = group.master
    for name in group.names:
        if name != master:
            await changed(group, change="remove", name=name)
            await electable(group, master)
    group.kill(*group.names)
    await group.start(master)
    await group.serving(master)
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("seed", seeds(4))
@virtual
async def test_an_honest_start_is_never_taken_for_an_old_image(seed: int) -> None:
    """Nodes are killed, lose power, are cut off, restored; masters change, logs are rolled back."""
    group = Group(seed)
    rng = Random(f"honest/{seed}")
    await group.start()
    await group.serving()
    lives = 0
    for number in range(25):
        await told(group, rng.randrange(1, 4), f"{number} ")
        name = rng.choice(group.names)
        if rng.random() < 0.4:
            others = [each for each in group.names if each != name]
            group.net.split([name], [*others, "client"])
            await group.until(lambda: group.master != name, "another one leads", limit_s=20)  # noqa: B023
            await told(group, 2, f"{number} cut ")
        group.kill(name, power=rng.random() < 0.5)
        group.net.heal()
        await asyncio.sleep(rng.uniform(0, 3))
        await group.start(name)
        await group.serving()
        lives += 1
        await group.until(lambda: group.nodes[name].member.recognised, "it has asked")  # noqa: B023
        assert group.nodes[name].member.counts.old_images == 0
        if rng.random() < 0.3:
            await group.until(lambda: all(n.state in ("MASTER", "REPLICA") for n in group.nodes.values()), "whole")
    assert lives == 25
    await group.until(lambda: all(n.state in ("MASTER", "REPLICA") for n in group.nodes.values()), "whole")
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("seed", [67, 68])
@virtual
async def test_a_tail_that_was_rolled_back_does_not_pass_for_what_was_acknowledged(seed: int) -> None:
    """The image was taken between a node's vote in a term and its rollback by that term's master. It has the same node
    file, and a tail of an older term that is longer than the blocks acknowledged in its place."""
    group, entries = await started(seed)
    old = group.master
    left = [name for name in group.names if name != old]
    group.net.split([old, "client"], left)
    for number in range(30):
        assert (await group.append(b"alone %d" % number, to=old, acks="none"))[0] == 200
    tail = group.nodes[old].opened().log.view.range.last
    await group.until(lambda: group.master != old, "another one leads")
    await group.serving()
    master = group.master
    (lacks,) = (name for name in left if name != master)
    group.kill(*group.names)
    group.net.heal()
    await group.start(master, old)
    node = group.nodes[old]
    await group.until(lambda: node.member.record is not None and node.member.record.voted_for == master, "it votes")
    image = group.machines[old].image()
    sequence = node.opened().log.node_file.record.sequence
    assert node.opened().log.view.range.last == tail  # not rolled back yet
    await group.serving(master)
    group.net.block(lacks, master)
    group.net.block(master, lacks)
    await group.start(lacks)
    entries |= await told(group, 8, "acknowledged ")
    assert max(entries) < tail
    await asyncio.sleep(TELL_S + 1)
    assert node.opened().log.node_file.record.sequence == sequence
    assert group.nodes[lacks].opened().log.view.range.last < min(
        vlsn for vlsn, value in entries.items() if b"ack" in value
    )
    group.kill(master, old)
    group.net.heal()
    group.machines[old].put_back(image)
    await group.start(old)
    await group.until(lambda: group.nodes[old].member.recognised, "it has asked")
    assert group.nodes[old].member.counts.old_images == 1
    await asyncio.sleep(20.0)
    assert not any(node.member.is_master() for node in group.nodes.values())
    await group.start(master)
    await group.serving()
    await has_all(group, entries)
    await group.stop()
    assert not group.fatal


@virtual
async def test_what_an_old_image_has_offered_ends_once_it_is_another() -> None:
    """A peer fetches its log before the node knows its incarnation: another incarnation's log is not the offered
    one."""
    group, entries = await started(61)
    name = next(each for each in group.names if each != group.master)
    image = group.machines[name].image()
    entries |= await told(group, 20, "later ")
    await has_all(group, entries)
    group.kill(name)
    group.machines[name].put_back(image)
    group.net.split([name], [group.master])
    await group.start(name)
    node = group.nodes[name]
    await group.until(lambda: node.open is not None, f"{name} is open")
    before = node.member.incarnation
    third = next(each for each in group.names if each not in (name, group.master))
    peer = Peer(group.nodes[third].member, NodeName(name), group.url(name))
    offer = await peer.open(Vlsn(1))
    assert not node.member.recognised and offer.incarnation == f"{before:016x}"
    assert await peer.read(offer.session, 1, 0, 100, have=Vlsn(0))
    group.net.heal()
    await group.until(lambda: node.member.recognised, f"{name} is another")
    assert node.member.incarnation != before
    with pytest.raises(NotFound, match="is over"):
        await peer.read(offer.session, 1, 0, 100, have=Vlsn(0))
    assert (await peer.ask(LOOK)).incarnation == f"{node.member.incarnation:016x}"
    assert not [hold for hold in node.opened().log.care.holds if hold.owner is Owner.RESTORE]
    await has_all(group, entries)
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("late_s", [0.1, 0.4, 1.0])
@virtual
async def test_who_has_heard_most_may_answer_last(late_s: float) -> None:
    """One of the others answers at once; the one with the promise is behind a slower link."""
    group, entries = await started(73)
    remembers = group.master
    forgets, restarted = (name for name in group.names if name != remembers)
    image = group.machines[forgets].image()
    entries |= await told(group, 20, "later ")
    await has_all(group, entries)
    group.kill(forgets, restarted)
    await group.start(restarted)
    await group.serving()
    group.machines[forgets].put_back(image)
    for way in ((remembers, forgets), (forgets, remembers)):
        group.net.delays_s[way] = (late_s, late_s)
    await group.start(forgets)
    await group.until(lambda: group.nodes[forgets].member.recognised, "it has asked")
    assert group.nodes[forgets].member.counts.old_images == 1
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize(("silent", "most_s"), [(False, 0.2), (True, 5.2)])
@virtual
async def test_a_start_waits_for_a_silent_member_as_long_as_for_any_answer(silent: bool, most_s: float) -> None:
    """A start does not wait for a member whose process has ended, because its machine refuses."""
    group, entries = await started(74)
    name, other = (each for each in group.names if each != group.master)
    if silent:
        group.net.split([other], [group.master, name, "client"])
    else:
        group.kill(other)
    group.kill(name)
    await group.start(name)
    await group.until(lambda: group.nodes[name].log is not None, "it is open")
    begins_s = group.loop.time()
    node = group.nodes[name]
    if silent:
        await group.until(lambda: other in node.member.reason, "it says for whom it waits", 1.0)
    await group.until(lambda: node.member.recognised, "it has asked", most_s)
    assert (group.loop.time() - begins_s > 1.0) is silent
    entries |= await told(group, 5, "later ")
    await group.until(lambda: node.dtvlsn() >= max(entries), "it follows")
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("ends", ["transfer", "no majority"])
def test_what_a_lead_has_heard_is_known_at_every_moment_of_its_end(ends: str) -> None:
    """The end comes between any two callbacks: the node that asks just then may be the one with an old image."""

    async def main() -> None:
        group, _ = await started(75)
        await asyncio.sleep(TELL_S)
        await told(group, 20, "acknowledged to the master alone ")
        master = group.master
        node = group.nodes[master]
        others = [name for name in group.names if name != master]
        highest = dict.fromkeys(others, NOTHING)
        looks = 0
        assert isinstance(group.loop, VirtualLoop)
        loop = group.loop

        def look() -> None:
            nonlocal looks
            looks += 1
            for name in others:
                heard = heard_in(answer_of(node.member, group.nodes[name].member.incarnation))
                assert both(heard, highest[name]) == heard, f"of {name}: {highest[name]}, then {heard}"
                highest[name] = heard
            loop.after_steps(1, look)

        look()
        assert all(highest[name].vlsn == node.opened().log.view.range.last for name in others)
        if ends == "transfer":
            answer = await group.client.request("POST", f"{group.url(master)}/v1/admin/transfer", timeout_s=5.0)
            assert answer.status == 200
        else:
            group.net.split([master], others)
        await group.until(lambda: any(group.nodes[name].member.is_master() for name in others), "another one leads")
        await group.until(lambda: not node.member.is_master(), "it leads no more")
        await asyncio.sleep(0.5)
        assert looks > 100
        loop.after_steps(0, look)
        group.net.heal()
        await group.serving()
        await group.stop()
        assert not group.fatal

    run(main())
