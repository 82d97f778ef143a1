"""``/v1/peer/restore`` and ``/v1/peer/block``: parameters are all there and checked, bytes come with their checksum."""

from __future__ import annotations

import msgspec
import pytest

from repl.repair.restore_http import CRC_FIELD, GENERATION_FIELD
from repl.web.limits import PEER_BODY_BYTES_MAX, RESTORE_RANGES_MAX
from tests.repl.web.calls import JSON, call, json, refused
from tests.repl.web.memory_node import MemoryNode
from vlsn.errors import BadBody
from vlsn.format.checksum import crc
from vlsn.limits import RESTORE_RANGE_BYTES_MAX
from vlsn.repair.restore_messages import Offer, OfferedSegment, read_ask, read_offer
from vlsn.state.state_store import StateRecord

RANGE = "/v1/peer/restore?session=good&segment=1&start=10&end=20&have=3"
BLOCK = "/v1/peer/block?group=g&sender=n2&to=n1&term=7&first=41"


async def test_a_range_comes_with_its_checksum_and_the_generation() -> None:
    answer = await call(MemoryNode(), "GET", RANGE)
    data = bytes(range(10, 20))
    assert (answer.status, bytes(answer.body)) == (200, data)
    assert answer.headers[CRC_FIELD] == f"{crc(data):08x}"
    assert answer.headers[GENERATION_FIELD] == "3"
    refused(await call(MemoryNode(), "GET", RANGE.replace("good", "over")), 404, "not-found")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("&have=3", ""),
        ("have=3", "have=-1"),
        ("start=10", "start=20"),
        ("start=10", "start=30"),
        ("end=20", f"end={RESTORE_RANGE_BYTES_MAX + 11}"),
        ("segment=1", "segment=0"),
        ("segment=1", "segment=100000000"),
        ("segment=1", "segment=one"),
    ],
)
async def test_a_bad_range_is_refused(old: str, new: str) -> None:
    refused(await call(MemoryNode(), "GET", RANGE.replace(old, new)), 400, "bad-argument")


async def test_a_block_is_asked_for_by_its_name() -> None:
    answer = await call(MemoryNode(), "GET", BLOCK)
    assert (answer.status, bytes(answer.body)) == (200, b"block 41 of term 7")
    assert answer.headers[CRC_FIELD] == f"{crc(answer.body):08x}"
    refused(await call(MemoryNode(), "GET", BLOCK.replace("group=g", "group=h")), 409, "wrong-group")
    for old, new in (("&to=n1", ""), ("first=41", "first=0"), ("term=7", "term=x")):
        refused(await call(MemoryNode(), "GET", BLOCK.replace(old, new)), 400, "bad-argument")


async def test_a_copy_is_asked_for_by_a_vlsn() -> None:
    asked = "/v1/peer/copy?group=g&sender=n2&to=n1&vlsn=41"
    assert json(await call(MemoryNode(), "GET", asked)) == {"last": 41}
    refused(await call(MemoryNode(), "GET", asked.replace("group=g", "group=h")), 409, "wrong-group")
    for old, new in (("&to=n1", ""), ("vlsn=41", "vlsn=0"), ("vlsn=41", "vlsn=x")):
        refused(await call(MemoryNode(), "GET", asked.replace(old, new)), 400, "bad-argument")


async def test_a_question_is_an_object_of_bounded_size() -> None:
    node = MemoryNode()
    assert json(await call(node, "POST", "/v1/peer/restore", JSON, body=b'{"group":"g"}')) == {"asked": "g"}
    refused(await call(node, "POST", "/v1/peer/restore", JSON, body=b"[]"), 400, "bad-body")
    refused(await call(node, "POST", "/v1/peer/restore", JSON, body=b"{"), 400, "bad-body")
    refused(await call(node, "POST", "/v1/peer/restore", JSON, body=b" " * (PEER_BODY_BYTES_MAX + 1)), 413, "too-large")
    refused(await call(node, "DELETE", "/v1/peer/restore"), 405, "not-allowed")
    assert RESTORE_RANGES_MAX >= 1


async def test_a_restore_is_asked_for_without_parameters() -> None:
    node = MemoryNode()
    assert json(await call(node, "POST", "/v1/admin/restore")) == {"state": "RESTORING"}
    refused(await call(node, "POST", "/v1/admin/restore?now=true"), 400, "bad-argument")
    assert node.calls == ["restore"]


ASK = {"group": "g", "sender": "n1", "incarnation": "0" * 16, "to": "n2", "purpose": "open"}


@pytest.mark.parametrize(
    "change",
    [
        {"purpose": "steal"},
        {"sender": "n/1"},
        {"incarnation": "X" * 16},
        {"from_vlsn": -1},
        {"from_vlsn": 1 << 63},
        {"to": None},
    ],
)
def test_a_question_that_is_none_is_refused(change: dict[str, object]) -> None:
    read_ask(ASK)
    with pytest.raises(BadBody):
        read_ask({**ASK, **change})


GOOD = Offer(
    group="g",
    name="n2",
    incarnation="0" * 16,
    first=41,
    dtvlsn=90,
    session="1" * 16,
    record=StateRecord(vlsn=90),  # type: ignore[arg-type]
    at=(3 << 32) + 4096,
    segments=[OfferedSegment(3, 8192), OfferedSegment(5, 4096)],
)


@pytest.mark.parametrize(
    "change",
    [
        {"first": 91},
        {"first": 0},
        {"dtvlsn": -1},
        {"record": None},
        {"session": ""},
        {"record": {"vlsn": 89}},
        {"segments": [[5, 4096], [3, 8192]]},
        {"segments": [[3, 4096], [3, 8192]]},
        {"segments": [[0, 4096]]},
        {"segments": [[100_000_000, 4096]]},
        {"segments": "all"},
    ],
)
def test_an_offer_that_cannot_be_is_refused(change: dict[str, object]) -> None:
    document = msgspec.to_builtins(GOOD)
    assert read_offer(msgspec.json.encode(document)) == GOOD
    with pytest.raises(BadBody):
        read_offer(msgspec.json.encode({**document, **change}))
