"""A vote is stored in its own term, whatever the node file has of an earlier term."""

from __future__ import annotations

from dataclasses import replace

from repl.group.vote_messages import VoteRequest
from tests.fakes.loop import virtual
from tests.seam.nodes import Group
from tests.sim.terms import newest_record
from vlsn.ids import Term
from vlsn.state.node_file import NodeFile


@virtual
async def test_a_vote_for_the_same_candidate_as_in_an_earlier_term_is_stored() -> None:
    """A restore, or an operator who lifts a floor, raises the stored term and keeps the earlier vote."""
    group = Group(91)
    await group.start()
    await group.serving()
    last = await group.appended(b"one")
    await group.until(lambda: all(node.dtvlsn() >= last for node in group.nodes.values()), "all have it")
    await group.serving()
    group.kill("n1")
    await group.until(lambda: group.master != "n1", "another one leads")
    last = await group.appended(b"two, which n1 lacks, so that n3 is elected")
    await group.until(lambda: all(node.dtvlsn() >= last for node in group.nodes.values()), "both have it")
    group.kill("n2", "n3")
    disk = group.machines["n1"].disk
    file = NodeFile.open(disk, "/n1/node.id")
    before = file.record
    stored = newest_record(bytes(group.machines["n3"].disk.on_medium("/n3/node.id") or b""))
    assert stored is not None
    file.replace(replace(before, term=stored.term, voted_for="n3", vote_term=stored.term))
    file.replace(replace(file.record, term=stored.term + 1))
    file.close()
    await group.start("n1", "n3")
    await group.until(lambda: "MASTER" in (group.state("n1"), group.state("n3")), "one of them leads")
    assert group.state("n3") == "MASTER"
    record = newest_record(bytes(disk.on_medium("/n1/node.id") or b""))
    led = group.nodes["n3"].opened().log.node_file.record.term
    assert record is not None and (record.vote_term, record.voted_for) == (led, "n3")
    assert led == stored.term + 1
    await group.stop()


@virtual
async def test_who_cannot_be_confirmed_is_told_the_stored_term_and_none_that_is_on_its_way_to_the_disk() -> None:
    """A term that is reported and then lost with the process would make the next process another incarnation."""
    group = Group(6)
    await group.start()
    await group.serving()
    name = next(each for each in group.names if each != group.master)
    opened = group.nodes[name].opened()
    electing, stored = opened.electing, opened.log.node_file.record
    unstored = Term(stored.term + 5)
    actions = electing.core.saw(unstored)
    assert actions and electing.core.term == unstored
    asker = next(each for each in group.names if each not in (name, group.master))
    incarnation = f"{group.nodes[asker].member.incarnation:016x}"
    request = VoteRequest(
        group=group.nodes[name].member.config.group, sender=asker, incarnation=incarnation, to=name,
        term=1 << 40, pre=True, last_term=1, last_vlsn=1,
    )  # fmt: skip
    reply = await electing.asked(request)
    assert (reply.granted, reply.reason) == (False, "unconfirmed")
    assert (reply.term, reply.sequence) == (stored.term, stored.sequence)
    await group.stop()
