"""All fields of a state record are the same on every node, by whatever way the log came there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
import pytest

from tests.fakes.loop import virtual
from tests.seam.nodes import BIG, CLEANS, SEGMENT, Group
from tests.seam.test_destinations import client
from tests.seam.test_group_settings import asked
from tests.seam.test_lost_group import lose_state
from tests.seam.test_lost_producers import sent
from tests.seam.test_membership import changed, fed
from tests.seam.test_transactions import commit, committed, place, staged
from vlsn.ids import Vlsn
from vlsn.levels import LEVELS
from vlsn.state.state_store import OWN_FIELDS, StateRecord

PRODUCER: Final = 0xA
Told = tuple[str, dict[str, Any]]


async def told(group: Group, turn: int) -> Told:
    """Makes every kind of change once. Returns the handle of its transaction, and the answer of the commit."""
    await sent(group, PRODUCER, turn)
    await sent(group, 0x10 + turn, 0, born=group.nodes[group.master].dtvlsn())
    durability = {"local": "write_no_sync", "replica": "sync"}
    assert (await asked(group, {"producers": 100} if not turn else {"durability": durability}))[0] == 200
    async with client(group) as log:
        if not turn:
            await log.destinations.put("orders", prefix="order-")
            await log.destinations.put("gone", prefix="gone-")
        else:
            await log.destinations.drop("gone")
        await log.append(b"%d" % turn, key=b"order-1")
        await (await log.destination("orders").take(1, 5.0))[0].ack()
    await changed(group, change="priority", name="n2", priority=2 + turn)
    handle = await staged(group, b"of transaction %d" % turn)
    status, said = await committed(group, handle)
    assert status == 200
    return handle, said


async def cleaned(seed: int, **settings: Any) -> tuple[Group, list[Told]]:
    """Starts three nodes whose logs begin after one turn of all changes, and before another turn. Returns the handles
    and answers of both turns' transactions."""
    group = Group(seed, levels=LEVELS, **CLEANS, retention_bytes=3 * SEGMENT, **settings)
    await group.start()
    await group.serving()
    await fed(group, 2)
    first = await told(group, 0)
    while any(node.opened().log.view.range.first <= first[1]["last"] for node in group.nodes.values()):
        await group.appended(BIG)
    return group, [first, await told(group, 1)]


def summed(record: StateRecord) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(record).items() if name not in OWN_FIELDS}


async def all_add_up_to_the_same(group: Group) -> None:
    last = await group.appended(b"says that what came before is durable")
    logs = {name: node.opened().log for name, node in group.nodes.items()}

    def is_quiet() -> bool:
        return all(
            log.view.range.last_sync == log.view.dtvlsn == logs[group.master].view.allocated >= last
            for log in logs.values()
        )

    await group.until(is_quiet, "all have all, and know it")
    await group.until(lambda: not any(log.view.history.lacks_to for log in logs.values()), "nobody lacks anything")
    found = {name: summed(log.view.snapshot(Vlsn(log.view.dtvlsn))()) for name, log in logs.items()}
    for name in group.names[1:]:
        for field, value in found[name].items():
            assert value == found["n1"][field], f"{field} of {name}"


async def kept(group: Group, name: str) -> None:
    """Checks that a node has the same state record after a kill."""
    await group.nodes[name].services.administration.checkpoint()
    group.kill(name)
    await group.start(name)


async def fetched(group: Group, name: str) -> None:
    lose_state(group, name)
    await group.start(name)


async def restored(group: Group, name: str) -> None:
    count = group.nodes[name].restoration.count
    assert group.nodes[name].restoration.want("a test")
    await group.until(lambda: group.nodes[name].restoration.count == count + 1, "it is restored")


@pytest.mark.parametrize("by", [kept, fetched, restored])
@virtual
async def test_whoever_has_its_log_anew_adds_up_to_what_the_others_do(
    by: Callable[[Group, str], Awaitable[None]],
) -> None:
    group, answers = await cleaned(1)
    name = next(name for name in group.names if name != group.master)
    await by(group, name)
    await group.until(lambda: group.state(name) == "REPLICA", "it follows")
    await all_add_up_to_the_same(group)
    answer = await group.client.request("POST", f"{group.url(group.master)}/v1/admin/transfer?to={name}", timeout_s=5.0)
    assert answer.status == 200
    await group.serving(name)
    assert group.master == name
    for handle, first in answers:
        status, again = await committed(group, handle)
        assert (status, again.get("duplicate"), place(again)) == (200, True, place(first))
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("found", [True, False])
@virtual
async def test_a_commit_that_only_others_know_is_asked_again_until_they_have_told(found: bool) -> None:
    """Before every member has answered, the commit is neither gone nor unknown; if none has it, it is unknown for
    good."""
    group, ((before, first), (behind, second)) = await cleaned(2)
    whole = group.master
    crippled = [name for name in group.names if name != whole]
    for name in crippled:
        lose_state(group, name)
    group.kill(whole)
    await group.start(*crippled)
    await group.serving()
    last = group.nodes[group.master].opened().log.view.range.last
    status, said = await commit(group, before)
    assert (status, said["type"]) == (503, "not-ready"), said
    status, said = await commit(group, behind)
    assert (status, said.get("duplicate"), place(said)) == (200, True, place(second))
    assert group.nodes[group.master].opened().log.view.range.last == last
    if not found:
        del group.machines[whole].stores.contents[f"/{whole}/state"]
    await group.start(whole)
    counts = group.nodes[group.master].member.events.counts
    await group.until(lambda: counts["producers.found" if found else "producers.forgotten"] == 1, "it is over")
    status, said = await commit(group, before)
    if found:
        assert (status, said.get("duplicate"), place(said)) == (200, True, place(first))
    else:
        assert (status, said["type"]) == (504, "outcome-unknown")
    await all_add_up_to_the_same(group)
    await group.stop()
    assert not group.fatal
