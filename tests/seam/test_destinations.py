"""Destinations against real nodes in one process: messages, acknowledgements, changes of the master."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from functools import partial
from itertools import pairwise
from random import Random
from random import seed as seed_global
from typing import Any

import msgspec
import pytest

from repl import connect
from repl.client.connect import Client
from repl.client.destination import PREFETCH_MAX, Message
from repl.destinations.handed import Handed, Holder
from tests.fakes.loop import run, virtual
from tests.fakes.seeds import seeds
from tests.seam.nodes import BIG, JSON, SEGMENT, Group
from tests.seam.test_once_client import disturb
from vlsn.errors import (
    BadArgument,
    DestinationFull,
    NotFound,
    NotMaster,
    OutcomeUnknown,
    QueueFull,
    StaleTerm,
    VlsnLogError,
    WrongVersion,
)
from vlsn.format.block import EntryKind
from vlsn.format.vlsn_set import VlsnSet
from vlsn.levels import LEVELS, Levels
from vlsn.state.acks import Acked, AckLimits


async def policed(group: Group, log: Client, policy: str, **settings: Any) -> None:
    """Makes ``orders`` with that policy, and waits until its depth is known."""
    await log.destinations.put("orders", prefix="o", full_policy=policy, **settings)
    await counted(group, log)


async def counted(group: Group, log: Client, name: str = "orders") -> None:
    uuid = (await log.destinations.get(name))["uuid"]
    lead = group.nodes[group.master].lead
    assert lead is not None
    policies = lead.destinations.full
    await group.until(lambda: (found := policies.policy(uuid)) is not None and found.counted, "its depth is counted")


async def made(seed: int, levels: Levels = LEVELS, **settings: Any) -> Group:
    group = Group(seed, levels=levels, **settings)
    await group.start()
    await group.serving()
    return group


def client(group: Group, timeout_s: float = 300.0) -> Client:
    urls = ",".join(group.url(name) for name in group.names)
    return connect(urls, timeout_s=timeout_s, exactly_once=True, network=group.client)


def acked(group: Group, uuid: str) -> Acked:
    found = group.nodes[group.master].opened().log.view.history.acks.folded.get(uuid)
    assert found is not None
    return found


def values(messages: Sequence[Message]) -> list[bytes]:
    return [message.value for message in messages]


@virtual
async def test_an_acknowledgement_is_durable_when_answered_though_the_group_asks_for_less() -> None:
    group = await made(59)
    body = msgspec.json.encode({"durability": {"local": "no_sync", "replica": "no_sync"}})
    url = f"{group.url(group.master)}/v1/admin/group/settings"
    assert (await group.client.request("POST", url, headers=JSON, body=body, timeout_s=5.0)).status == 200
    async with client(group) as log:
        told = await log.destinations.put("orders", from_="start")
        await log.append(b"a")
        for machine in group.machines.values():
            machine.disk.latency = lambda call: 1.0 if "sync" in call.name else 0.0
        dest = log.destination("orders")
        batch = await dest.take(1, 10.0)
        assert values(batch) == [b"a"]
        await dest.ack(batch)
        assert acked(group, told["uuid"]).done.has(batch.vlsns).all()
        view = group.nodes[group.master].opened().log.view
        assert view.dtvlsn == view.range.last
    await group.stop()


@virtual
async def test_messages_go_out_once_and_come_back_until_they_are_acknowledged() -> None:
    group = await made(1)
    async with client(group) as log:
        told = await log.destinations.put("orders", prefix="order-", ack_timeout_s=5.0)
        assert (await log.destinations.put("orders", ack_timeout_s=6.0))["uuid"] == told["uuid"]
        await log.append(b"none of it", key=b"other")
        await log.append_many([b"a", b"b", b"c"], keys=[b"order-1", b"order-2", b"order-3"])
        one, other = log.destination("orders"), log.destination("orders")
        first = await one.take(2, 0.0)
        assert values(first) == [b"a", b"b"] and [each.attempt for each in first] == [1, 1]
        assert values(await other.take(10, 0.0)) == [b"c"], "a message goes to one asker"
        assert await other.take(10, 0.0) == []
        await one.ack(first)
        await asyncio.sleep(7.0)
        (again,) = await one.take(10, 0.0)
        assert (again.value, again.attempt) == (b"c", 2)
        await again.ack()
        waiting = asyncio.ensure_future(one.take(10, 20.0))
        await asyncio.sleep(1.0)
        await log.append(b"d", key=b"order-4")
        (late,) = await waiting
        assert late.value == b"d"
        await late.nack("not now")
        (late,) = await one.take(10, 0.0)
        assert late.attempt == 2
        await late.ack()
        known = acked(group, told["uuid"])
        assert known.done.intervals == 1 and known.floor >= late.vlsn, "in order they are one interval"
        assert (await log.destinations.get("orders"))["out"] == 0
        with pytest.raises(NotFound):
            await log.destination("none").take()
        with pytest.raises(BadArgument):
            log.destination("two words")
        told = await log.destinations.get("orders")
        assert told["from"] == told["floor"] + 1, "one that is made with it goes on where this one is"
        for nonsense in (0, -1, 1 << 63, "now", ""):
            with pytest.raises(BadArgument):
                await log.destinations.put("orders", from_=nonsense)
    await group.stop()


@virtual
async def test_what_is_acknowledged_is_never_delivered_again_by_the_next_master_and_the_rest_is() -> None:
    group = await made(2)
    async with client(group) as log:
        await log.destinations.put("orders", from_="start")
        await log.append_many([f"{number}".encode() for number in range(10)])
        dest = log.destination("orders")
        messages = await dest.take(10, 0.0)
        await dest.ack([each for each in messages if int(each.value) % 2])
        group.kill(group.master, power=True)
        rest = await dest.take(10, 60.0)
        assert values(rest) == [b"0", b"2", b"4", b"6", b"8"]
        await dest.ack(messages)  # of the master before, and of this one
        assert await dest.take(10, 0.0) == []
    await group.stop()


@virtual
async def test_a_message_that_nobody_can_take_is_dead_and_can_be_tried_again() -> None:
    group = await made(5)
    async with client(group) as log:
        await log.destinations.put("orders", attempts_max=2, ack_timeout_s=3.0, dead_letter="dead/orders")
        await log.append_many([b"bad", b"good"])
        dest = log.destination("orders")
        bad, good = await dest.take(10, 0.0)
        await good.ack()
        await bad.nack("first")
        (bad,) = await dest.take(10, 0.0)
        assert bad.attempt == 2
        await bad.nack("second")
        assert await dest.take(10, 1.0) == [], "neither it nor its letter is a message here"
        (letter,) = [entry async for entry in log.read(key=b"dead/orders")]
        (commit,) = [entry async for entry in log.read(from_vlsn=letter.vlsn + 1, limit=1, all_kinds=True)]
        assert commit.kind == EntryKind.COMMIT and commit.txn == letter.vlsn, "one transaction"
        assert "dead" in msgspec.json.decode(commit.value)["acks"][(await log.destinations.get("orders"))["uuid"]]
        assert msgspec.json.decode(letter.value) == {
            "destination": "orders",
            "vlsn": bad.vlsn,
            "attempts": 2,
            "reason": "second",
        }
        told = await log.destinations.get("orders")
        assert told["dead"] == 1 and told["intervals"] == 1
        await log.destinations.retry_dead("orders")
        (bad,) = await dest.take(10, 0.0)
        assert (bad.value, bad.attempt) == (b"bad", 1)
        await bad.ack()
        told = await log.destinations.get("orders")
        assert told["dead"] == 0 and told["floor"] >= bad.vlsn
    await group.stop()


@virtual
async def test_an_outage_of_seconds_takes_no_attempts_where_there_is_a_delay_that_grows() -> None:
    group = await made(32)
    loop = asyncio.get_running_loop()
    async with client(group) as log:
        delays = {"redelivery_delay_s": 2.0, "redelivery_factor": 3.0, "redelivery_delay_s_max": 10.0}
        await log.destinations.put("orders", ack_timeout_s=60.0, attempts_max=4, **delays)
        await log.append(b"a")
        dest, over_s, at = log.destination("orders"), loop.time() + 15.0, list[float]()
        while loop.time() < over_s or not at:
            (message,) = await dest.take(10, 60.0)
            at.append(loop.time())
            if loop.time() < over_s:
                await message.nack("no database")
        await message.ack()
        assert message.attempt == 4, "2, 6 and 10 seconds: the outage was over by then"
        waited = [later - sooner for sooner, later in pairwise(at)]
        assert all(0.0 <= one - delay < 1.0 for one, delay in zip(waited, (2.0, 6.0, 10.0), strict=True)), waited
        assert (await log.destinations.get("orders"))["dead"] == 0
        for nonsense in (
            {"redelivery_delay_s": -1.0},
            {"redelivery_delay_s": 1e9},
            {"redelivery_factor": 0.5},
            {"redelivery_delay_s_max": 1.0},
            {"max_out": -1},
            {"max_out": 65_537},
            {"redelivery_factor": float("nan")},
        ):
            with pytest.raises(BadArgument, match=next(iter(nonsense))):
                await log.destinations.put("orders", **nonsense)
    await group.stop()


@virtual
async def test_the_next_master_counts_a_delay_anew_and_a_move_ends_it() -> None:
    group = await made(33)
    loop = asyncio.get_running_loop()
    async with client(group) as log:
        await log.destinations.put("orders", from_="start", ack_timeout_s=60.0, redelivery_delay_s=4.0)
        await log.append_many([b"a1", b"a2", b"b1"], keys=[b"a", b"a", b"b"])
        dest = log.destination("orders")
        (first,) = await dest.take(1, 0.0)
        await first.nack()
        first, *_ = await dest.take(1, 20.0)  # b1
        await first.ack()
        (first,) = await dest.take(1, 20.0)
        assert (first.value, first.attempt) == (b"a1", 2)
        await first.nack("no database")
        await asyncio.sleep(0.5)
        group.kill(group.master, power=True)
        await group.serving()
        leads_s = loop.time()
        assert values(await dest.take(10, 2.0)) == [], "a1 waits for its delay, and a2 for a1"
        again = await dest.take(10, 60.0)
        assert [(each.value, each.attempt) for each in again] == [(b"a1", 3), (b"a2", 1)]
        assert loop.time() - leads_s >= 4.0
        await dest.nack(again)
        assert values(await dest.take(10, 1.0)) == []
        await log.destinations.move("orders", "start")
        assert values(await dest.take(10, 1.0)) == [b"a1", b"a2", b"b1"]
    await group.stop()


@virtual
async def test_below_level_4_a_destination_has_neither_a_delay_nor_a_limit_of_what_is_out() -> None:
    group = await made(35, Levels(1, 3))
    async with client(group, 2.0) as log:
        await log.destinations.put("orders", attempts_max=2)
        with pytest.raises(WrongVersion, match="need level 4, the group is at level 3"):
            await log.destinations.put("orders", redelivery_delay_s=1.0)
        with pytest.raises(WrongVersion):
            await log.destinations.put("parts", max_out=5)
        assert [each["name"] for each in await log.destinations.list()] == ["orders"]
        await log.append(b"a")
        (message,) = await log.destination("orders").take(1, 1.0)
        await message.nack(delay_s=2.0)  # is of this lead alone, and in no log
        assert values(await log.destination("orders").take(1, 1.0)) == []
    await group.stop()


@virtual
async def test_the_next_master_goes_on_counting_attempts() -> None:
    group = await made(16)
    async with client(group) as log:
        await log.destinations.put("orders", attempts_max=3, ack_timeout_s=3.0, from_="start", dead_letter="dead")
        await log.append(b"a")
        dest = log.destination("orders")
        for attempt in (1, 2):
            (message,) = await dest.take(10, 1.0)
            assert message.attempt == attempt
            await asyncio.sleep(4.0)
        group.kill(group.master, power=True)
        (message,) = await dest.take(10, 60.0)
        assert message.attempt == 3
        await message.nack("the last one")
        assert await dest.take(10, 1.0) == []
        (letter,) = [entry async for entry in log.read(key=b"dead")]
        assert msgspec.json.decode(letter.value)["attempts"] == 3
    await group.stop()


@virtual
async def test_what_had_its_last_attempt_before_a_change_of_master_holds_nothing_of_its_key_back() -> None:
    """Simulation seeds 175 and 298: the next master dead-letters the message, and does not wait for the letter."""
    group = await made(18)
    async with client(group) as log:
        await log.destinations.put("orders", attempts_max=2, ack_timeout_s=30.0, dead_letter="dead")
        await log.append_many([b"bad", b"good", b"other"], keys=[b"a", b"a", b"b"])
        dest = log.destination("orders")
        (bad,) = await dest.take(1, 0.0)
        await bad.nack("first")
        (bad,) = await dest.take(1, 0.0)
        assert bad.attempt == 2
        await asyncio.sleep(1.0)
        group.kill(group.master, power=True)
        assert values(await dest.take(10, 60.0)) == [b"good", b"other"]
        assert await dest.take(10, 1.0) == []
        (letter,) = [entry async for entry in log.read(key=b"dead")]
        assert msgspec.json.decode(letter.value)["vlsn"] == bad.vlsn
    await group.stop()


def test_past_so_many_intervals_nothing_is_delivered_until_a_gap_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repl.destinations.acknowledged.ACK_INTERVALS_MAX", 6)

    async def main() -> None:
        group = await made(9)
        async with client(group) as log:
            uuid = (await log.destinations.put("orders", ack_timeout_s=60.0, from_="start"))["uuid"]
            for number in range(20):
                await log.append(f"{number}".encode())
            dest = log.destination("orders")
            kept = []
            while messages := await dest.take(2, 0.0):
                kept.append(messages[0])
                await dest.ack(messages[1:])
            assert len(kept) < 6 and acked(group, uuid).done.intervals <= 6
            assert "a gap" in (await log.destinations.get("orders"))["blocked_by"]
            await kept[0].ack()
            assert await dest.take(2, 0.0)
        await group.stop()

    run(main())


@pytest.fixture
def eight_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits masters and tables to eight intervals of acknowledged VLSNs."""
    monkeypatch.setattr("repl.destinations.acknowledged.ACK_INTERVALS_MAX", 8)
    monkeypatch.setattr("repl.destinations.full.ACK_INTERVALS_MAX", 8)
    monkeypatch.setattr("vlsn.state.acks.AckLimits", partial(AckLimits, intervals=8))


@pytest.mark.usefixtures("eight_intervals")
@virtual
async def test_a_drop_that_no_table_would_take_is_refused_by_name() -> None:
    """Each append has one message more than may be kept, so no two drops are one interval."""
    group = await made(92)
    async with client(group, 5.0) as log:
        await policed(group, log, "drop", max_messages=1)
        for kept in range(1, 8):
            await log.append(b"kept", key=b"o")
            await log.append(b"dropped", key=b"o")
            await log.destinations.put("orders", max_messages=kept + 1)
        await log.append(b"kept", key=b"o")
        with pytest.raises(DestinationFull, match="no more can be dropped: 8 intervals of VLSNs are acknowledged"):
            await log.append(b"not dropped", key=b"o")
        said = await log.destinations.get("orders")
        assert said["refused"]["dropped"] == 7 and said["refused"]["failed"] > 0
    await group.stop()


@pytest.mark.usefixtures("eight_intervals")
@virtual
async def test_dead_ones_are_not_tried_again_where_the_table_would_not_take_it() -> None:
    group = await made(93)
    async with client(group, 5.0) as log:
        uuid = (await log.destinations.put("orders", prefix="o", attempts_max=1, from_="start"))["uuid"]
        await log.append_many([b"%d" % number for number in range(24)], keys=[b"o"] * 24)
        dest, table = log.destination("orders"), acked(group, uuid)
        while messages := await dest.take(4, 0.0):
            await log.destinations.nack("orders", [message.vlsn for message in messages[1::2]], "no")
            await dest.ack(messages[::2])
        await group.until(lambda: acked(group, uuid).dead.count == 12, "they are dead")
        table = acked(group, uuid)
        with pytest.raises(QueueFull, match="more intervals of acknowledged VLSNs, 8 are kept"):
            await log.destinations.retry_dead("orders")
        assert acked(group, uuid) == table, "refused means unchanged"
    await group.stop()


@virtual
async def test_a_master_that_was_unseated_hands_out_nothing() -> None:
    group = await made(10)
    async with client(group) as log:
        await log.destinations.put("orders", from_="start")
        await log.append(b"a")
        old = group.master
        lead = group.nodes[old].lead
        assert lead is not None
        delivery = await lead.destinations.of("orders")
        group.net.split([old], [name for name in group.names if name != old])
        with suppress(VlsnLogError, TimeoutError):
            async with asyncio.timeout(5.0):
                assert not len((await delivery.messages(10, 0.0, Holder(Handed()))).columns), (
                    "nobody has confirmed that it leads"
                )
    await group.stop()


@virtual
async def test_an_ack_is_not_answered_before_a_majority_has_its_note() -> None:
    group = await made(18)
    async with client(group) as log:
        await log.destinations.put("orders", from_="start")
        vlsn = await log.append(b"a")
        lead = group.nodes[group.master].lead
        assert lead is not None
        delivery = await lead.destinations.of("orders")
        assert len((await delivery.messages(10, 0.0, Holder(Handed()))).entries) == 1
        group.net.split([group.master], [name for name in group.names if name != group.master])
        told = delivery.ack(VlsnSet.of([vlsn]), wait=True)
        assert told is not None
        with pytest.raises((NotMaster, OutcomeUnknown)):
            await told
    await group.stop()


@pytest.mark.parametrize("seed", seeds(4))
@virtual
async def test_a_new_lead_knows_what_the_one_before_has_answered(seed: int) -> None:
    """The replicas have the note, and do not know yet that it is durable when their master ends."""
    group = await made(seed)
    async with client(group) as log:
        await log.destinations.put("orders", from_="start")
        vlsn = await log.append(b"a")
        lead = group.nodes[group.master].lead
        assert lead is not None
        delivery = await lead.destinations.of("orders")
        assert len((await delivery.messages(10, 0.0, Holder(Handed()))).entries) == 1
        await asyncio.sleep(1.0)
        told = delivery.ack(VlsnSet.of([vlsn]), wait=True)
        assert told is not None
        await told
        group.kill(group.master, power=True)
        await group.until(lambda: any(node.lead is not None for node in group.nodes.values()), "another one leads")
        (lead,) = [node.lead for node in group.nodes.values() if node.lead is not None]
        delivery = await lead.destinations.of("orders")
        assert not (await delivery.messages(10, 0.0, Holder(Handed()))).entries
    await group.stop()


@virtual
async def test_dropped_and_made_anew_it_knows_nothing_of_late_acknowledgements() -> None:
    group = await made(6)
    async with client(group) as log:
        await log.destinations.put("orders", from_="start")
        await log.append(b"a")
        dest = log.destination("orders")
        (old,) = await dest.take(10, 0.0)
        await log.destinations.drop("orders")
        with pytest.raises(NotFound):
            await old.ack()
        await log.destinations.put("orders", from_="start")
        with pytest.raises(NotFound, match="was dropped"):
            await old.ack()
        (new,) = await dest.take(10, 0.0)
        assert new.value == b"a"
        await new.ack()
        with pytest.raises(StaleTerm):
            await log.destinations.put("orders", uuid="0123456789abcdef")
        with pytest.raises(BadArgument):
            await log.destinations.put("orders", prefix="x")
        with pytest.raises(BadArgument):
            await log.destinations.put("orders", full_policy="drop")
    await group.stop()


@virtual
async def test_it_is_paused_moved_and_shown() -> None:
    group = await made(7)
    async with client(group) as log:
        await log.destinations.put("orders", from_="start")
        first, _ = await log.append_many([b"a", b"b", b"c"])
        dest = log.destination("orders")
        assert [row[4] for row in await log.destinations.peek("orders", 2)] == [b"a", b"b"]
        messages = await dest.take(10, 0.0)
        await dest.ack(messages)
        await log.destinations.move("orders", first + 1)
        assert values(await dest.take(10, 0.0)) == [b"b", b"c"]
        await log.destinations.pause("orders")
        await log.append(b"d")
        assert await dest.take(10, 1.0) == []
        waiting = asyncio.ensure_future(dest.take(10, 20.0))
        await asyncio.sleep(0.5)
        await log.destinations.resume("orders")
        assert values(await waiting) == [b"d"]
        await log.destinations.move("orders", "end")
        assert await dest.take(10, 0.0) == []
        (told,) = await log.destinations.list()
        assert told["name"] == "orders" and told["lag_vlsns"] < 3
    await group.stop()


@virtual
async def test_a_group_with_an_older_member_has_none() -> None:
    group = await made(8, Levels(1, 2))
    async with client(group, 10.0) as log:
        with pytest.raises(WrongVersion, match="destinations need level 3, the group is at level 2"):
            await log.destinations.put("orders")
    await group.stop()


@pytest.mark.parametrize("seed", seeds(6))
@virtual
async def test_nothing_is_lost_and_nothing_acknowledged_comes_again_through_any_failure(seed: int) -> None:
    """Two workers, one of which forgets some messages, while nodes die and restart."""
    seed_global(seed)
    group, rng = await made(seed), Random(seed)
    handled: dict[bytes, int] = {}
    sent = [f"{number}".encode() for number in range(120)]
    async with client(group) as log:
        await log.destinations.put("orders", from_="start", ack_timeout_s=2.0, attempts_max=1000)
        disturbing = asyncio.create_task(disturb(group, rng, []))

        async def work(number: int) -> None:
            dest = log.destination("orders", prefetch=rng.choice([1, 7, 50]))
            while len(handled) < len(sent):
                before = set(handled)
                messages = await dest.take(None, 1.0)
                assert not before & {message.value for message in messages}, "acknowledged, and here again"
                for message in messages:
                    if number and rng.random() < 0.3:
                        continue
                    with suppress(VlsnLogError):
                        await message.ack()
                        handled[message.value] = message.vlsn

        workers = [asyncio.create_task(work(number)) for number in range(2)]
        for value in sent:
            await log.append(value, key=rng.choice([b"a", b"b", None]))
            await asyncio.sleep(rng.random() / 10)
        await asyncio.gather(*workers)
        disturbing.cancel()
        with suppress(asyncio.CancelledError):
            await disturbing
        assert set(handled) == set(sent)
    await group.stop()


@pytest.mark.long
@virtual
async def test_messages_found_for_an_asker_who_is_gone_go_to_the_next_one() -> None:
    """The messages are in segments, and take several reads; the waiting caller leaves at any moment meanwhile."""
    group = Group(19, levels=LEVELS, ring_bytes_max=SEGMENT)
    await group.start()
    await group.serving()
    async with client(group) as log:
        await log.destinations.put("orders", prefix="o", from_="start", attempts_max=1000)
        value, keys = 4 * BIG, [b"o1", *[b"none of it"] * 39] * 4
        wanted = [await log.append(value, key=key) for key in keys][::40]
        lead = group.nodes[group.master].lead
        assert lead is not None
        delivery = await lead.destinations.of("orders")
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert (await delivery.messages(10, 0.0, Holder(Handed()))).columns.vlsns.tolist() == wanted
        span_s, gone = loop.time() - began, 0
        for part in range(40):
            delivery.nack(wanted, "again")
            await asyncio.sleep(1.0)  # nothing that was read is kept any more
            asking = asyncio.create_task(delivery.messages(10, 0.0, Holder(Handed())))
            await asyncio.sleep(span_s * part / 40)
            if asking.done():
                continue
            gone += 1
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking
            assert (await delivery.messages(10, 0.0, Holder(Handed()))).columns.vlsns.tolist() == wanted, part
        assert gone > 10
    await group.stop()


@virtual
async def test_more_messages_than_one_call_takes_are_given_back_in_parts() -> None:
    group, most = await made(19), 12_000
    async with client(group) as log:
        await log.destinations.put("orders", from_="start", ack_timeout_s=3600.0)
        for _ in range(6):
            await log.append_many([b""] * (most // 6), keys=[b"a", b"b"] * (most // 12))
        dest = log.destination("orders", prefetch=PREFETCH_MAX)
        async with aclosing(dest.batches()) as batches:

            async def taken() -> dict[int, Message]:
                found: dict[int, Message] = {}
                while len(found) < most:
                    found |= {each.vlsn: each for each in await anext(batches)}
                return found

            first = await taken()
            await dest.nack(list(first.values()), "no stock")
            again = await taken()
        assert again.keys() == first.keys()
        assert {each.attempt for each in again.values()} == {2}, "each attempt counts, whichever part it was in"
    await group.stop()
