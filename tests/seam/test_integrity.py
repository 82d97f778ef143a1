"""Two different blocks with one VLSN and right checksums: the members' copies decide which node is restored."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl.repair.integrity import Verdict, agree_where_durable, weigh
from repl.repair.restoring import Peer
from tests.fakes.loop import run, virtual
from tests.seam.nodes import Group
from tests.seam.test_mending import place
from vlsn.errors import Halted
from vlsn.format import block as block_format
from vlsn.format.checksum import crc
from vlsn.format.frame import FRAME_BYTES, FrameKind, build_header, decode_header
from vlsn.format.segment import SegmentHeader
from vlsn.ids import NodeName, Vlsn

NAMES = [NodeName(f"n{number}") for number in range(1, 6)]


async def filled(seed: int, told: dict[int, bytes]) -> Group:
    group = Group(seed)
    await group.start()
    await group.serving()
    for number in range(5):
        value = b"value %d" % number
        status, answer = await group.append(value, acks="all")
        assert status == 200, answer
        told[answer["first"]] = value
    return group


def forge(group: Group, name: str, vlsn: int, *, byte: int) -> None:
    """Kills ``name``, and changes the last byte of the block with ``vlsn`` in its log, with right checksums."""
    path, offset = place(group, name, vlsn)
    group.kill(name)
    disk = group.machines[name].disk
    data = disk.content(path)
    salt = SegmentHeader.decode(data[:4096]).salt
    frame = decode_header(data, offset, offset=offset, salt=salt)
    assert frame is not None and frame.kind == FrameKind.BLOCK
    start = offset + FRAME_BYTES
    block = bytearray(data[start : start + frame.length])
    block[-1] = byte
    block[56:60] = crc(bytes(block[64:])).to_bytes(4, "little")
    block[60:64] = crc(bytes(block[:60])).to_bytes(4, "little")
    block_format.decode(bytes(block))
    head = build_header(FrameKind.BLOCK, bytes(block), offset=offset, prev=frame.prev, synced=frame.synced, salt=salt)
    file = disk.open(path, write=True)
    file.write(offset, [head, bytes(block)])
    file.sync()
    file.close()


def verdicts(group: Group, name: str) -> list[str]:
    events = group.nodes[name].member.events.recent("syncup", "integrity")
    return [event["verdict"] for event in events]


async def healed(group: Group, told: dict[int, bytes], restored: str) -> None:
    """Waits until all have one log, ``restored`` by a restore, and the group accepts appends."""
    node = group.nodes[restored]
    await group.until(lambda: node.restoration.count == 1, f"{restored} is restored")
    await group.serving()
    streaming = [name for name in group.names if name != group.master]
    await group.until(lambda: all(group.state(name) == "REPLICA" for name in streaming), "all are fed")
    status, answer = await group.append(b"afterwards", acks="all")
    assert status == 200, answer
    told[answer["first"]] = b"afterwards"
    await group.until(lambda: all(each.dtvlsn() >= max(told) for each in group.nodes.values()), "all have all")
    for name in group.names:
        assert await group.read(name) == told
    assert not group.fatal


@virtual
async def test_a_replica_whose_copy_is_the_odd_one_out_is_restored() -> None:
    told: dict[int, bytes] = {}
    group = await filled(61, told)
    odd = next(name for name in group.names if name != group.master)
    forge(group, odd, max(told), byte=0x21)
    _, answer = await group.append(b"meanwhile")
    told[answer["first"]] = b"meanwhile"
    await group.start(odd)
    await healed(group, told, odd)
    assert verdicts(group, odd) == ["minority"]
    assert [name for name in group.machines[odd].disk.list(f"/{odd}") if name.endswith(".vlog.old")]
    assert set(verdicts(group, group.master)) <= {"sound"}
    await group.stop()


def test_a_master_whose_copy_is_the_odd_one_out_stops_leading_and_is_restored() -> None:
    """No node halts while the third member's copy is unknown."""

    async def main(seed: int) -> bool:
        told: dict[int, bytes] = {}
        group = await filled(seed, told)
        forge(group, "n1", max(told), byte=0x22)
        group.kill("n2", "n3")
        await group.start("n1", "n2")
        await group.until(lambda: any(node.member.is_master() for node in group.nodes.values()), "one leads")
        led = group.master == "n1"
        await group.until(lambda: verdicts(group, "n1") != [] and verdicts(group, "n2") != [], "both have looked")
        await asyncio.sleep(3.0)
        for name in ("n1", "n2"):
            assert set(verdicts(group, name)) == {"open"}
            assert group.state(name) in ("MASTER", "UNKNOWN")
        waits = [node.member.reason for node in group.nodes.values() if node.state == "UNKNOWN"]
        assert waits and all("waits for the copy of n3" in reason for reason in waits)
        await group.start("n3")
        await healed(group, told, "n1")
        assert "minority" in verdicts(group, "n1")
        await group.stop()
        return led

    for seed in range(70, 90):
        if run(main(seed)):
            return
    raise AssertionError("n1 has led in no seed")


@pytest.mark.parametrize("seed", [62, 63])
@virtual
async def test_without_a_majority_of_equal_copies_whoever_meets_it_halts_and_nobody_leads(seed: int) -> None:
    """The third node meets no other once the first two have halted (63), and its status says where to look."""
    told: dict[int, bytes] = {}
    group = await filled(seed, told)
    for number, name in enumerate(group.names):
        forge(group, name, max(told), byte=0x30 + number)
    await group.start()

    def halted() -> list[str]:
        return [name for name in group.names if group.state(name) == "HALTED"]

    await group.until(lambda: len(halted()) >= 2, "a majority has halted")
    await asyncio.sleep(20.0)
    for name, node in group.nodes.items():
        if name in halted():
            assert "no majority" in node.member.reason and "audit" in node.member.reason
        else:
            says = "; ".join(f"{other} is HALTED, its status says why" for other in halted())
            assert (node.state, node.member.reason) == ("UNKNOWN", f"no-master: {says}")
        assert node.restoration.count == 0
    for name in halted():
        asking = next(node for each, node in group.nodes.items() if each != name)
        peer = Peer(asking.member, NodeName(name), group.url(name))
        with pytest.raises(Halted, match="nobody restores from it"):
            await peer.open(Vlsn(1))
    await group.stop()


async def differing(seed: int, *, forged: int, durable: bool) -> tuple[Group, str, int]:
    """Makes three nodes that have just opened their logs. ``forged`` of them have another last block than the returned
    node, which knows its own to be durable. With ``durable`` the others know theirs to be durable, too."""
    told: dict[int, bytes] = {}
    group = await filled(seed, told)
    own, last = group.master, max(told)
    others = [name for name in group.names if name != own]
    if durable:
        await group.until(lambda: all(node.dtvlsn() == last for node in group.nodes.values()), "all know it")
        await asyncio.sleep(3.0)  # each has stated its idle end
    for name in others[:forged]:
        forge(group, name, last, byte=0x33)
    group.kill(*others[forged:])
    await asyncio.sleep(3.0)
    assert group.nodes[own].dtvlsn() == last
    group.kill(own)
    await group.start()
    await group.until(lambda: all(node.member.log is not None for node in group.nodes.values()), "all have opened")
    found = {name: group.nodes[name].dtvlsn() for name in group.names}
    assert found[own] == last and all((found[name] == last) is durable for name in others), found
    return group, own, last


@pytest.mark.parametrize(("forged", "durable"), [(1, True), (2, False)])
@virtual
async def test_a_log_is_kept_where_one_knows_another_end_durable_or_a_majority_holds_one(
    forged: int, durable: bool
) -> None:
    """One node that knows another block to be durable is enough, and so is a majority that does not know it."""
    group, own, last = await differing(64, forged=forged, durable=durable)
    with pytest.raises(Halted, match=f"at VLSN {last}, up to which this node knows its log durable"):
        await agree_where_durable(group.nodes[own].member, "a test")
    await group.stop()


@virtual
async def test_a_log_is_given_up_where_less_than_a_majority_holds_another_end_that_is_not_known_durable() -> None:
    group, own, _ = await differing(65, forged=1, durable=False)
    assert not await agree_where_durable(group.nodes[own].member, "a test")
    await group.stop()


@given(
    st.integers(1, 5),
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["a", "b", "c"]), min_size=1),
    st.data(),
)
def test_what_copies_prove(size: int, copies: dict[NodeName, str], data: st.DataObject) -> None:
    """The rule is compared with its definition: with all answers that silent members could still give."""
    electable = NAMES[:size]
    own = data.draw(st.sampled_from(sorted(copies)))
    weighed = weigh(copies, electable, own)
    told = [copies[name] for name in electable if name in copies]
    silent = [name for name in electable if name not in copies]
    held = {digest for digest in told if told.count(digest) * 2 > size}
    assert list(weighed.silent) == silent
    if held:
        (digest,) = held
        assert weighed.verdict is (Verdict.SOUND if copies[own] == digest else Verdict.MINORITY)
        assert weighed.others == {name for name in copies if copies[name] != digest}
        return
    assert not weighed.others
    could = any((told.count(digest) + len(silent)) * 2 > size for digest in {*told, "d"})
    assert weighed.verdict is (Verdict.OPEN if could else Verdict.SPLIT)
