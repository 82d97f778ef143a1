"""Transactions on real nodes in one process: staged at the master, logged whole by their commits, whatever fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import msgspec
import pytest

from repl.lead.leading import Leading
from repl.web.limits import STAGED_S
from tests.fakes.loop import VirtualLoop, run, virtual
from tests.fakes.seeds import seeds
from tests.seam.nodes import JSON, Group
from tests.seam.test_membership import fed
from vlsn.ids import Vlsn
from vlsn.levels import LEVEL_1, LEVELS

OCTETS = {"Content-Type": "application/octet-stream"}
NDJSON = {"Content-Type": "application/x-ndjson"}
NOBODYS = "t-00000000000000aa-1-1"
PRODUCER = "00000000000000aa"
Answer = tuple[int, dict[str, Any]]


async def ask(
    group: Group,
    method: str,
    path: str,
    body: bytes = b"",
    headers: dict[str, str] = JSON,
    *,
    to: str = "",
    timeout_s: float = 12.0,
) -> Answer:
    url = f"{group.url(to or group.master)}/v1/transactions{path}"
    response = await group.client.request(method, url, headers=headers, body=body, timeout_s=timeout_s)
    return response.status, msgspec.json.decode(bytes(response.body)) if response.body else {}


async def begin(group: Group, *, to: str = "") -> str:
    status, said = await ask(group, "POST", "", to=to)
    assert (status, said["expires_s"]) == (200, STAGED_S), said
    handle: str = said["transaction"]
    return handle


async def stage(group: Group, handle: str, *values: bytes, to: str = "", query: str = "") -> Answer:
    """Stages values, as lines where they are many."""
    if len(values) == 1:
        return await ask(group, "POST", f"/{handle}/entries{query}", values[0], OCTETS, to=to)
    lines = b"\n".join(msgspec.json.encode({"value": value.decode()}) for value in values)
    return await ask(group, "POST", f"/{handle}/entries{query}", lines, NDJSON, to=to)


async def staged(group: Group, *values: bytes) -> str:
    """Begins a transaction with these entries."""
    handle = await begin(group)
    assert await stage(group, handle, *values) == (200, {"staged": len(values)})
    return handle


async def commit(group: Group, handle: str, query: str = "", *, to: str = "", timeout_s: float = 12.0) -> Answer:
    return await ask(group, "POST", f"/{handle}/commit{query}", to=to, timeout_s=timeout_s)


async def committed(group: Group, handle: str, query: str = "") -> Answer:
    """Asks until the answer is a certain one, under any master."""
    while True:
        status, said = await commit(group, handle, query)
        if said.get("type") not in ("no-master", "insufficient-replicas", "not-ready", "outcome-unknown"):
            return status, said
        await asyncio.sleep(0.1)


def place(said: dict[str, Any]) -> tuple[int, int, int]:
    return said["first"], said["last"], said["term"]


def lead(group: Group) -> Leading:
    role = group.nodes[group.master].member.role
    assert isinstance(role, Leading)
    return role


def played(story: Callable[[Group], Awaitable[None]], *, seed: int = 7, **settings: Any) -> None:
    async def main() -> None:
        group = Group(seed, levels=LEVELS, **settings)
        await group.start()
        await group.serving()
        await fed(group, 2)
        await story(group)
        assert not group.fatal
        await group.stop()

    run(main())


async def known(group: Group, vlsn: int) -> None:
    await group.until(
        lambda: all(node.dtvlsn() >= vlsn for node in group.nodes.values()), "all know that it is durable"
    )


async def next_master(group: Group) -> None:
    """Kills the master, and waits for the next one."""
    group.kill(group.master)
    await group.until(lambda: any(node.member.is_master() for node in group.nodes.values()), "another leads")
    await group.serving()


def test_what_is_staged_is_nowhere_until_its_commit_and_then_everywhere_at_once() -> None:
    async def story(group: Group) -> None:
        await group.appended(b"before")
        handle = await begin(group)
        assert await stage(group, handle, b"a") == (200, {"staged": 1})
        assert await stage(group, handle, b"b", b"c") == (200, {"staged": 3})
        await known(group, await group.appended(b"between"))
        for name in group.names:
            assert list((await group.read(name)).values()) == [b"before", b"between"]
        status, said = await commit(group, handle)
        assert (status, said["last"] - said["first"], said["durable"]) == (200, 3, True)
        await known(group, said["last"])
        for name in group.names:
            read = await group.read(name)
            assert list(read.values()) == [b"before", b"between", b"a", b"b", b"c"]
            assert list(read)[-3:] == [said["first"], said["first"] + 1, said["first"] + 2]
        assert lead(group).transactions.staged_bytes == len(lead(group).transactions) == 0

    played(story)


def test_a_commit_asked_again_is_answered_as_the_first_by_whoever_leads() -> None:
    async def story(group: Group) -> None:
        handles = {await staged(group, b"by its handle"): "", await staged(group, b"by its producer"): ""}
        named = list(handles)[1]
        handles[named] = f"?producer={PRODUCER}&sequence=0&born=1"
        places = {handle: place((await commit(group, handle, query))[1]) for handle, query in handles.items()}

        async def again() -> None:
            for handle, query in handles.items():
                status, said = await committed(group, handle, query)
                assert (status, said["duplicate"], said["durable"]) == (200, True, True), said
                assert place(said) == places[handle]

        await again()
        assert place((await commit(group, named))[1]) == places[named], "its master knows under which name"
        await next_master(group)
        await again()
        group.kill(*group.nodes, power=True)
        await group.start()
        await group.serving()
        await again()
        values = list((await group.read(group.master)).values())
        assert values == [b"by its handle", b"by its producer"]

    played(story)


def test_a_transaction_whose_master_is_gone_is_gone_and_nothing_of_it_readable() -> None:
    async def story(group: Group) -> None:
        handle = await staged(group, b"a", b"b")
        await next_master(group)
        for query in ("", f"?producer={PRODUCER}&sequence=0&born=1"):
            status, said = await committed(group, handle, query)
            assert (status, said["type"]) == (409, "transaction-gone")
        status, said = await stage(group, handle, b"c")
        assert (status, said["type"]) == (409, "transaction-gone")
        assert (await ask(group, "DELETE", f"/{handle}"))[0] == 204
        for name in group.nodes:
            assert await group.read(name) == {}

    played(story)


def test_a_commit_that_was_rolled_back_is_gone() -> None:
    async def story(group: Group) -> None:
        handle = await staged(group, b"rolled back")
        old = group.master
        others = [name for name in group.names if name != old]
        group.net.split(others, [old])
        status, said = await commit(group, handle, "?acks=none", to=old)
        assert (status, said["durable"]) == (200, False)
        await group.until(lambda: any(group.nodes[name].member.is_master() for name in others), "another leads")
        await group.serving(group.master)
        status, said = await committed(group, handle)
        assert (status, said["type"]) == (409, "transaction-gone")
        group.net.heal()
        await group.until(lambda: group.state(old) == "REPLICA", "the old one follows")
        assert (await commit(group, handle))[1]["type"] == "transaction-gone"
        assert await group.read(group.master) == {}

    played(story, election_timeout_s=0.5)


def test_a_master_that_was_unseated_calls_nothing_gone() -> None:
    """It misses its successor's entries: the transaction was begun and committed there."""

    async def story(group: Group) -> None:
        old = group.master
        loop, process = group.loop, group.machines[old].process
        assert isinstance(loop, VirtualLoop) and process is not None
        loop.pause(process.owner)
        await group.until(
            lambda: any(name != old and node.member.is_master() for name, node in group.nodes.items()), "another"
        )
        new = next(name for name, node in group.nodes.items() if name != old and node.member.is_master())
        await group.serving(new)
        handle = await begin(group, to=new)
        assert (await stage(group, handle, b"there", to=new))[0] == 200
        assert (await commit(group, handle, to=new))[0] == 200
        asked = [
            asyncio.create_task(commit(group, handle, to=old)),
            asyncio.create_task(stage(group, handle, b"more", to=old)),
            asyncio.create_task(ask(group, "DELETE", f"/{handle}", to=old)),
        ]
        await asyncio.sleep(0.05)
        loop.resume(process.owner)
        for task in asked:
            status, said = await task
            assert (status, said.get("type")) == (503, "no-master")
        assert (await commit(group, handle, to=new))[1]["duplicate"]

    played(story)


def test_what_may_be_forgotten_is_not_called_gone() -> None:
    async def story(group: Group) -> None:
        aborted, kept = await staged(group, b"x"), await staged(group, b"y")
        assert (await ask(group, "DELETE", f"/{aborted}"))[0] == 204
        assert (await commit(group, aborted))[1]["type"] == "transaction-gone"
        born = int(aborted.split("-")[2])
        commits = lead(group).log.view.history.commits
        commits.forget_before(Vlsn(born + 2))  # as if others had put somebody out up to the VLSN behind its birth
        for answer in (
            await commit(group, aborted),
            await stage(group, aborted, b"z"),
            await ask(group, "DELETE", f"/{aborted}"),
        ):
            assert (answer[0], answer[1]["type"]) == (504, "outcome-unknown")
        assert (await commit(group, kept))[0] == 200, "it was never submitted before, whatever is forgotten"

    played(story)


def test_a_transaction_that_nobody_calls_ends() -> None:
    async def story(group: Group) -> None:
        handles = [await staged(group, b"a"), await staged(group, b"b")]
        await asyncio.sleep(STAGED_S - 1)
        assert (await stage(group, handles[0], b"more"))[1] == {"staged": 2}
        await asyncio.sleep(2)
        assert (await commit(group, handles[1]))[1]["type"] == "transaction-gone"
        assert len(lead(group).transactions) == 1
        await asyncio.sleep(STAGED_S)
        assert (await commit(group, handles[0]))[1]["type"] == "transaction-gone"
        transactions, counts = lead(group).transactions, lead(group).member.counts
        assert (len(transactions), transactions.staged_bytes, counts.expired, counts.gone) == (0, 0, 2, 2)
        third = await staged(group, b"c")
        assert (await commit(group, third))[0] == 200
        assert list((await group.read(group.master)).values()) == [b"c"]

    played(story)


def test_a_transaction_behind_one_whose_commit_is_under_way_ends_in_its_own_time() -> None:
    async def story(group: Group) -> None:
        first, second = await staged(group, b"a"), await staged(group, b"b")
        lead(group).holds_back = True  # as while it hands over
        asking = asyncio.create_task(commit(group, first, "?timeout=300", timeout_s=300.0))
        await asyncio.sleep(1)
        assert await stage(group, second, b"c") == (200, {"staged": 2})
        await asyncio.sleep(STAGED_S + 1)
        transactions, counts = lead(group).transactions, lead(group).member.counts
        assert (len(transactions), counts.expired) == (1, 1)
        lead(group).holds_back = False
        assert (await asking)[0] == 200
        assert (len(transactions), transactions.staged_bytes) == (0, 0)

    played(story)


def test_each_limit_refuses_before_anything_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repl.lead.transactions.TRANSACTIONS_MAX", 3)
    monkeypatch.setattr("repl.lead.transactions.STAGED_BYTES_MAX", 20_000)

    async def story(group: Group) -> None:
        handles = [await begin(group) for _ in range(3)]
        response = await group.client.request(
            "POST", f"{group.url(group.master)}/v1/transactions", headers=JSON, timeout_s=5.0
        )
        assert (response.status, response.headers["Retry-After"]) == (429, "1")
        first = handles[0]
        assert (await stage(group, first, b"." * 15_000))[0] == 200
        held = lead(group).transactions.staged_bytes
        for handle in handles[:2]:
            status, said = await stage(group, handle, b"." * 5_000)
            assert (status, said["type"]) == (429, "queue-full")
        assert lead(group).transactions.staged_bytes == held
        assert (await ask(group, "DELETE", f"/{first}"))[0] == 204
        assert (await stage(group, handles[1], b"." * 5_000))[0] == 200
        handles[0] = await begin(group)
        assert (await commit(group, handles[0]))[1]["first"], "a lone COMMIT"

    played(story)


def test_a_transaction_is_as_large_as_a_block_and_a_segment_take(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(group: Group) -> None:
        handle = await staged(group, b"." * 40_000)
        status, said = await stage(group, handle, b"." * 30_000)
        assert (status, said["type"]) == (413, "too-large"), "segments of 64 KiB"
        monkeypatch.setattr("vlsn.format.submission.TRANSACTION_BYTES_MAX", 45_000)
        status, said = await stage(group, handle, b"." * 6_000)
        assert (status, said["type"]) == (413, "too-large")
        assert (await stage(group, handle, b"." * 1_000))[1] == {"staged": 2}
        monkeypatch.setattr("vlsn.format.submission.BATCH_ENTRIES_MAX", 4)
        assert (await stage(group, handle, b"3"))[1] == {"staged": 3}
        status, said = await stage(group, handle, b"4")
        assert (status, said["type"]) == (413, "too-large"), "the COMMIT is an entry, too"
        assert (await commit(group, handle))[0] == 200
        assert [len(value) for value in (await group.read(group.master)).values()] == [40_000, 1_000, 1]

    played(story)


def test_a_call_that_is_sent_again_stages_nothing_twice() -> None:
    async def story(group: Group) -> None:
        handle = await begin(group)
        for _ in range(2):
            assert (await stage(group, handle, b"a", b"b", query="?after=0"))[1] == {"staged": 2}
            assert (await stage(group, handle, b"c", query="?after=2"))[1] == {"staged": 3}
            status, said = await stage(group, handle, b"d", query="?after=4")
            assert (status, said["type"]) == (400, "bad-argument")
            break
        assert (await stage(group, handle, b"c", query="?after=2"))[1] == {"staged": 3}
        assert (await stage(group, handle, b"a", b"b", query="?after=0"))[0] == 400, "not the last call"
        assert (await commit(group, handle))[0] == 200
        assert list((await group.read(group.master)).values()) == [b"a", b"b", b"c"]

    played(story)


def test_two_connections_that_commit_at_once_make_one_of_it() -> None:
    async def story(group: Group) -> None:
        for number in range(20):
            handle = await staged(group, b"%d" % number)
            answers = await asyncio.gather(*(commit(group, handle) for _ in range(3)))
            assert {status for status, _ in answers} == {200}
            assert len({place(said) for _, said in answers}) == 1
            assert sorted(said.get("duplicate", False) for _, said in answers) == [False, True, True]
        assert list((await group.read("n1")).values()) == [b"%d" % number for number in range(20)]

    played(story)


def test_a_commit_under_way_takes_no_entries_no_abort_and_no_other_name() -> None:
    async def story(group: Group) -> None:
        handle = await staged(group, b"a")
        others = [name for name in group.names if name != group.master]
        group.net.split(others, [group.master, "client"])
        waits = asyncio.create_task(commit(group, handle, "?timeout=1"))
        last = lead(group).log.view.range.last
        await group.until(lambda: lead(group).log.view.range.last > last, "it is logged")

        async def refused() -> None:
            for answer in (
                await stage(group, handle, b"b"),
                await ask(group, "DELETE", f"/{handle}"),
                await commit(group, handle, f"?producer={PRODUCER}&sequence=0"),
            ):
                assert (answer[0], answer[1]["type"]) == (409, "transaction-closed")

        await refused()
        status, said = await waits
        assert (status, said["type"]) == (504, "outcome-unknown")
        await refused()
        group.net.heal()
        status, said = await committed(group, handle)
        assert (status, said["duplicate"]) == (200, True)
        await refused()
        assert list((await group.read(group.master)).values()) == [b"a"]

    played(story, election_timeout_s=5.0)


def test_a_commit_refused_unlogged_may_be_asked_again_or_taken_back() -> None:
    async def story(group: Group) -> None:
        handle = await staged(group, b"a")
        master = group.master
        others = [name for name in group.names if name != master]
        group.net.split(others, [master, "client"])
        await group.until(lambda: lead(group).present == 0, "its replicas are silent")
        status, said = await commit(group, handle)
        assert (status, said["type"]) == (503, "insufficient-replicas")
        assert (await stage(group, handle, b"b"))[1] == {"staged": 2}
        group.net.heal()
        await fed(group, 2)
        status, said = await commit(group, handle)
        assert (status, "duplicate" in said) == (200, False)
        assert list((await group.read(group.master)).values()) == [b"a", b"b"]

    played(story, election_timeout_s=20.0)


def test_a_full_disk_refuses_the_commit_and_keeps_the_stage() -> None:
    async def story(group: Group) -> None:
        handle = await staged(group, b"a")
        space, disk = lead(group).log.care.space, group.machines[group.master].disk
        disk.free_bytes = lambda directory: 0  # type: ignore[method-assign]
        space.look()
        await group.until(lambda: space.low, "it has seen that")
        status, said = await commit(group, handle)
        assert (status, said["type"]) == (503, "no-space")
        del disk.free_bytes
        space.look()
        await group.until(lambda: not space.low, "there is room again")
        status, said = await committed(group, handle)
        assert (status, "duplicate" in said) == (200, False)

    played(story)


def test_what_is_staged_does_not_pass_to_the_heir_of_a_hand_over() -> None:
    async def story(group: Group) -> None:
        handle, old = await staged(group, b"a"), group.master
        done = await staged(group, b"done")
        lead_of_old = lead(group)
        group.machines[old].disk.latency = lambda call: 0.2 if "sync" in call.name else 0.0
        busy = asyncio.create_task(group.append(b"busy", to=old))
        await group.until(lambda: lead_of_old.log.cycle.writing_s > 0, "the disk is busy")
        waits = asyncio.create_task(commit(group, done, to=old))
        await group.until(lambda: lead_of_old.log.queue.entries == 2, "the commit waits behind it")
        handing = asyncio.create_task(group.nodes[old].services.administration.transfer(None))
        while not lead_of_old.holds_back:  # noqa: ASYNC110
            await asyncio.sleep(0.000_1)
        held = asyncio.create_task(commit(group, handle, to=old))
        status, said = await ask(group, "POST", "", to=old)
        assert (status, said["type"]) == (503, "no-master")
        await handing
        await group.until(lambda: group.master != old, "the heir leads")
        assert (await busy)[0] == 200
        assert (await waits)[0] == 200
        status, said = await held
        assert (status, said["type"]) == (503, "no-master"), "it was held back, and refused with the lead's end"
        await group.serving()
        await group.until(lambda: group.nodes[old].member.master_url() is not None, "it knows who leads")
        response = await group.client.request(
            "POST", f"{group.url(old)}/v1/transactions/{handle}/commit", headers=JSON, timeout_s=5.0
        )
        assert response.status == 307
        assert response.headers["Location"].endswith(f"/v1/transactions/{handle}/commit")
        status, said = await committed(group, handle)
        assert (status, said["type"]) == (409, "transaction-gone")
        status, said = await committed(group, done)
        assert (status, said["duplicate"]) == (200, True)

    played(story)


def test_a_call_that_was_given_up_is_taken_back_and_comes_too_late() -> None:
    async def story(group: Group) -> None:
        handle = await staged(group, b"a", b"b")
        assert (await stage(group, handle, b"given up", query="?after=2"))[1] == {"staged": 3}
        held = lead(group).transactions.staged_bytes
        for _ in range(2):
            assert (await stage(group, handle, b"c", query="?after=2&rewinds=1"))[1] == {"staged": 3}
        assert lead(group).transactions.staged_bytes < held
        for late in (b"given up", b"too late"):
            status, said = await stage(group, handle, late, query="?after=2")
            assert (status, said["type"]) == (400, "bad-argument")
        status, said = await stage(group, handle, b"d", query="?after=1&rewinds=2")
        assert (status, said["type"]) == (400, "bad-argument"), "no call ended there"
        assert (await stage(group, handle, b"given up, too", query="?after=3&rewinds=1"))[1] == {"staged": 4}
        for _ in range(2):
            assert (await commit(group, handle, "?after=3&rewinds=2"))[0] == 200
        assert list((await group.read(group.master)).values()) == [b"a", b"b", b"c"]
        assert lead(group).transactions.staged_bytes == 0

    played(story)


def test_a_begin_that_is_sent_again_begins_nothing_twice() -> None:
    async def story(group: Group) -> None:
        named = f"?id={PRODUCER}"
        answers = [await ask(group, "POST", named) for _ in range(2)]
        assert answers[0] == answers[1] and len(lead(group).transactions) == 1
        handle = answers[0][1]["transaction"]
        assert handle.startswith(f"t-{PRODUCER}-")
        assert answers[0][1]["bytes_max"] == lead(group).log.placement.payload_bytes_max
        await stage(group, handle, b"a")
        for ended in (False, True):
            status, said = await ask(group, "POST", named)
            assert (status, said["type"]) == (400, "bad-argument"), "the name is taken"
            if not ended:
                assert (await commit(group, handle))[0] == 200

    played(story)


@virtual
async def test_a_group_below_their_level_has_no_transactions() -> None:
    group = Group(9, levels=LEVEL_1)
    await group.start()
    await group.serving()
    for status, said in (
        await ask(group, "POST", ""),
        await stage(group, NOBODYS, b"a"),
        await commit(group, NOBODYS),
        await ask(group, "DELETE", f"/{NOBODYS}"),
    ):
        assert (status, said["type"]) == (400, "wrong-version")
        assert "vlsnlog group upgrade" in said["detail"]
    await group.stop()


def test_what_no_master_gave_out_is_no_handle() -> None:
    async def story(group: Group) -> None:
        real = await begin(group)
        wrong = [
            "t-0000000000000000-1-1",
            "t-ffffffffffffffff-1-1",
            "t-00000000000000AA-1-1",
            "t-00000000000000aa-01-1",
            "t-00000000000000aa-1-0",
            "t-00000000000000aa-9223372036854775808-1",
            "t-00000000000000aa-1",
            f"{real} ",
            "x" * 5_000,
        ]
        for handle in wrong:
            status, said = await commit(group, handle.replace(" ", "%20"))
            assert (status, said["type"]) == (400, "bad-argument"), handle
        assert (await ask(group, "POST", f"/{real}/nothing"))[0] == 404
        assert (await ask(group, "POST", f"/{real}/commit/more"))[0] == 404
        assert (await ask(group, "GET", f"/{real}"))[0] == 405
        status, said = await commit(group, real, "?sequence=1")
        assert (status, said["type"]) == (400, "bad-argument")

    played(story)


def test_a_linearizable_read_does_not_wait_for_idle_stages() -> None:
    async def story(group: Group) -> None:
        for _ in range(100):
            await staged(group, b"idle")
        began = group.loop.time()
        url = f"{group.url('n2')}/v1/entries?from=1&consistency=linearizable"
        response = await group.client.request("GET", url, timeout_s=5.0)
        assert (response.status, bytes(response.body)) == (200, b"")
        assert group.loop.time() - began < 0.1

    played(story)


@pytest.mark.parametrize("seed", seeds(8))
def test_every_transaction_is_there_whole_and_once_or_gone_whatever_is_called_and_fails(seed: int) -> None:
    """Compared with a plain model: the answer to each call decides which entries may be read at the end."""

    async def story(group: Group) -> None:
        rng = Random(seed)
        values: dict[str, list[bytes]] = {}
        told: dict[str, tuple[int, int, int]] = {}
        gone: set[str] = set()
        names: dict[str, str] = {}

        async def act(number: int) -> None:
            handle = rng.choice([*values, ""])
            call = rng.randrange(10)
            if not handle or call < 2:
                status, said = await ask(group, "POST", "")
                if status == 200:
                    values[said["transaction"]] = []
            elif call < 6:
                status, said = await stage(group, handle, b"%d" % number)
                if status == 200:
                    values[handle].append(b"%d" % number)
                elif said["type"] == "transaction-gone" and not names.get(handle):
                    assert handle not in told
                    gone.add(handle)
            elif call < 9:
                if handle not in names:
                    named = rng.random() < 0.3
                    names[handle] = f"?producer={rng.getrandbits(62) + 1:016x}&sequence=0&born=1" if named else ""
                status, said = await commit(group, handle, names[handle])
                if status == 200:
                    assert handle not in gone
                    assert told.setdefault(handle, place(said)) == place(said)
                elif said["type"] == "transaction-gone":
                    assert handle not in told
                    gone.add(handle)
            else:
                status, said = await ask(group, "DELETE", f"/{handle}")
                if status == 204 and not names.get(handle):
                    assert handle not in told
                    gone.add(handle)

        for number in range(150):
            fault = rng.random()
            if fault < 0.03 and len(group.nodes) == 3:
                await next_master(group)
            elif fault < 0.05:
                await asyncio.sleep(STAGED_S)
            elif fault < 0.1:
                for name in group.names:
                    if name not in group.nodes:
                        await group.start(name)
            try:
                await act(number)
            except (ConnectionError, TimeoutError):
                pass
        for handle, name in names.items():
            status, said = await committed(group, handle, name)
            if status == 200:
                assert handle not in gone and told.setdefault(handle, place(said)) == place(said)
            else:
                assert said["type"] == "transaction-gone" and handle not in told, said
        read = await group.read(group.master)
        assert sorted(read.values()) == sorted(value for handle in told for value in values[handle])
        for handle, (first, last, _) in told.items():
            assert [read[vlsn] for vlsn in range(first, last)] == values[handle]

    played(story, seed=seed)
