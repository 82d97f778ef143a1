"""Producers whose submissions were cleaned and forgotten with `state`: none is logged twice, or refused for good."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.fakes.loop import virtual
from tests.seam.nodes import BIG, CLEANS, SEGMENT, Group
from tests.seam.test_lost_group import lose_state
from tests.seam.test_membership import changed, fed
from vlsn.ids import Vlsn
from vlsn.state.producers import ProducersRecord

LATER = 0xA
"""A producer with three submissions, all cleaned away."""
ONCE = 0xB
"""A producer with a single submission without ``born``."""
ACROSS = 0xC
"""A producer with submissions on both sides of the logs' beginning."""


async def send(group: Group, producer: int, sequence: int, **more: Any) -> tuple[int, dict[str, Any]]:
    fields = "".join(f"&{name}={text}" for name, text in more.items())
    response = await group.client.request(
        "POST",
        f"{group.url(group.master)}/v1/entries?producer={producer:016x}&sequence={sequence}&timeout=5{fields}",
        headers={"Content-Type": "application/octet-stream"},
        body=f"{producer:x}/{sequence}".encode(),
        timeout_s=6.0,
    )
    return response.status, msgspec.json.decode(bytes(response.body))


async def sent(group: Group, producer: int, sequence: int, **more: Any) -> dict[str, Any]:
    """Returns the answer to an accepted submission; repeats it while the node answers that this is safe."""
    status, said = await send(group, producer, sequence, **more)
    while status != 200:
        assert said["type"] in ("no-master", "insufficient-replicas", "not-ready"), said
        await asyncio.sleep(0.05)
        status, said = await send(group, producer, sequence, **more)
    return said


async def due(group: Group, producer: int, name: str) -> dict[str, Any]:
    response = await group.client.request("GET", f"{group.url(name)}/v1/producers/{producer:016x}", timeout_s=6.0)
    said: dict[str, Any] = msgspec.json.decode(bytes(response.body))
    return said


async def written(seed: int) -> tuple[Group, dict[tuple[int, int], int]]:
    """Makes three nodes whose logs begin after all submissions of ``LATER`` and ``ONCE``, inside one of ``ACROSS``, and
    before the newest GROUP entry. Returns the VLSN of each submission, too."""
    group = Group(seed, **CLEANS, retention_bytes=3 * SEGMENT)
    await group.start()
    await group.serving()
    await fed(group, 2)
    first = [(LATER, 0), (ACROSS, 0), (LATER, 1), (ONCE, 0), (ACROSS, 1), (LATER, 2)]
    places = {(producer, sequence): (await sent(group, producer, sequence))["first"] for producer, sequence in first}
    gone = max(places.values())
    while any(node.opened().log.view.range.first <= gone for node in group.nodes.values()):
        await group.appended(BIG)
    places[ACROSS, 2] = (await sent(group, ACROSS, 2))["first"]
    await changed(group, change="priority", name="n2", priority=2)
    for _ in range(2):
        last = await group.appended(b"says that what came before is durable")
    await group.until(lambda: all(node.dtvlsn() >= last for node in group.nodes.values()), "all have all")
    return group, places


def tables(group: Group) -> list[ProducersRecord]:
    """Returns each node's table as of a VLSN that is durable everywhere."""
    at = Vlsn(min(node.opened().log.view.dtvlsn for node in group.nodes.values()))
    return [node.opened().log.view.history.producers.snapshot(at)() for node in group.nodes.values()]


async def all_know_the_same(group: Group) -> None:
    last = (await sent(group, 0xE, 0, born=group.nodes[group.master].dtvlsn()))["first"]
    await group.until(lambda: all(node.dtvlsn() >= last for node in group.nodes.values()), "all have all")
    await group.until(lambda: tables(group)[1:] == tables(group)[:-1], "all know the same")
    assert not any(record.lacks_to for record in tables(group))


async def is_as_it_was(group: Group, places: dict[tuple[int, int], int]) -> None:
    """Checks that every submission is answered as before, and the next of each producer is accepted."""
    for (producer, sequence), vlsn in places.items():
        said = await sent(group, producer, sequence)
        assert (said["first"], said.get("duplicate")) == (vlsn, True), (producer, sequence)
    for producer in (LATER, ONCE, ACROSS):
        sequence = 1 + max(sequence for named, sequence in places if named == producer)
        said = await sent(group, producer, sequence)
        assert said["first"] > max(places.values())
        assert "duplicate" not in said
        assert (await due(group, producer, group.master))["next"] == sequence + 1


@pytest.mark.parametrize("seed", [1, 2, 3])
@virtual
async def test_a_master_whose_state_was_lost_knows_every_producer_again(seed: int) -> None:
    group, places = await written(seed)
    crippled = next(name for name in group.names if name != group.master)
    lose_state(group, crippled)
    await group.start(crippled)
    await group.until(lambda: group.state(crippled) == "REPLICA", "it follows")
    answer = await group.client.request(
        "POST", f"{group.url(group.master)}/v1/admin/transfer?to={crippled}", timeout_s=5.0
    )
    assert answer.status == 200
    await group.serving(crippled)
    assert group.nodes[crippled].member.events.counts["producers.found"] == 1
    await is_as_it_was(group, places)
    await all_know_the_same(group)
    await group.stop()
    assert not group.fatal


async def waits_for_the_third(group: Group, places: dict[tuple[int, int], int]) -> None:
    """Checks that a submission unknown to all of them is refused for now, unlogged, and everything else is served."""
    assert (await group.append(b"plain"))[0] == 200
    turn = max(sequence for producer, sequence in places if producer == ACROSS) + 1
    durable = group.nodes[group.master].dtvlsn()
    for producer, sequence, more in ((ACROSS, turn, {}), (0x100 + turn, 0, {"born": durable})):
        said = await sent(group, producer, sequence, **more)
        places[producer, sequence] = said["first"]
        assert "duplicate" not in said
    assert (await sent(group, ACROSS, turn))["duplicate"]
    last = group.nodes[group.master].opened().log.view.range.last
    unknown: list[tuple[int, int, dict[str, int]]] = [(LATER, 2, {}), (LATER, 3, {}), (ONCE, 0, {}), (ACROSS, 0, {})]
    for producer, sequence, more in (*unknown, (0xD, 0, {}), (0xD, 0, {"born": 1})):
        status, said = await send(group, producer, sequence, **more)
        assert (status, said["type"]) == (503, "not-ready"), (producer, sequence, said)
    assert group.nodes[group.master].opened().log.view.range.last == last
    for name in group.nodes:
        assert (await due(group, LATER, name))["type"] == "not-ready"
        assert (await due(group, ACROSS, name))["next"] == turn + 1
        for path in ("consumers", "consumers/billing", "sinks", "sinks/orders"):  # it may have had some
            answer = await group.client.request("GET", f"{group.url(name)}/v1/{path}", timeout_s=10.0)
            assert (answer.status, msgspec.json.decode(bytes(answer.body))["type"]) == (503, "not-ready"), path


@pytest.mark.parametrize("seed", [4, 5, 6])
@virtual
async def test_two_whose_state_was_lost_refuse_nobody_for_good_before_the_third_has_told(seed: int) -> None:
    """The two serve plain appends, producers whose newest submission is in the log, and those that are new by ``born``.
    Their tables have no more after a checkpoint, or after one was restored from the other."""
    group, places = await written(seed)
    whole = group.master
    crippled = [name for name in group.names if name != whole]
    for name in crippled:
        lose_state(group, name)
    group.kill(whole)
    await group.start(*crippled)
    await group.serving()
    await waits_for_the_third(group, places)
    other = next(name for name in crippled if name != group.master)
    node = group.nodes[other]
    assert node.restoration.want("a test")
    await group.until(lambda: node.restoration.count == 1 and node.state == "REPLICA", "it is restored")
    await waits_for_the_third(group, places)
    for name in crippled:
        await group.nodes[name].services.administration.checkpoint()
    group.kill(*crippled)
    await group.start(*crippled)
    await group.serving()
    await waits_for_the_third(group, places)
    await group.start(whole)
    await is_as_it_was(group, places)
    await all_know_the_same(group)
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("seed", [7, 8])
@virtual
async def test_what_every_node_has_lost_is_forgotten_by_all_alike(seed: int) -> None:
    """No node can ever know: a producer that may be an old one is refused, and begins again under another name."""
    group, places = await written(seed)
    for name in group.names:
        lose_state(group, name)
    await group.start()
    await group.serving()
    await fed(group, 2)
    master = group.nodes[group.master]
    await group.until(lambda: master.member.events.counts["producers.forgotten"] == 1, "it is given up")
    await all_know_the_same(group)
    for producer, sequence, more in ((LATER, 3, {}), (LATER, 0, {"born": 1}), (ONCE, 0, {"born": 1})):
        status, said = await send(group, producer, sequence, **more)
        assert (status, said["type"]) == (409, "unknown-producer")
    status, said = await send(group, ACROSS, 0)
    assert (status, said["type"]) == (409, "duplicate-forgotten")
    assert (await sent(group, ACROSS, 2))["first"] == places[ACROSS, 2]
    assert "duplicate" not in await sent(group, ACROSS, 3)
    assert "duplicate" not in await sent(group, 0xD, 0, born=master.dtvlsn())
    await group.stop()
    assert not group.fatal
