"""``/v1/peer/restore`` and ``/v1/peer/block``: parameters are all there and checked, bytes come with their checksum."""

from __future__ import annotations

import msgspec
import pytest

from repl.node.node import Node
from repl.repair.restore_http import GENERATION_FIELD
from repl.repair.restoring import CRC_FIELD
from repl.web.limits import PEER_BODY_BYTES_MAX
from tests.repl.client.group import until
from tests.repl.web.calls import JSON, call, json, refused, whole_body
from tests.repl.web.one_node import FIRST, TERM, follower, started
from vlsn.errors import BadBody
from vlsn.format.block import decode_header
from vlsn.format.checksum import crc
from vlsn.limits import RESTORE_RANGE_BYTES_MAX
from vlsn.repair.restore_messages import Offer, OfferedSegment, read_ask, read_offer
from vlsn.state.state_store import StateRecord

NAMES = "group=sim&sender=n1&to=n2"
BLOCK = f"/v1/peer/block?{NAMES}&term={TERM}&first=1"
COPY = f"/v1/peer/copy?{NAMES}&vlsn=2"
ASK = {"group": "sim", "sender": "n1", "incarnation": "0" * 16, "to": "n2", "purpose": "open"}
RANGE = "/v1/peer/restore?session=over&segment=1&start=10&end=20&have=3"


async def replica() -> Node:
    """Returns n2, with the group's first block."""
    node = await follower()
    await until(lambda: node.dtvlsn() == FIRST - 1)
    return node


async def test_a_range_comes_with_its_checksum_and_the_generation() -> None:
    node = await replica()
    offer = read_offer(bytes((await call(node, "POST", "/v1/peer/restore", JSON, msgspec.json.encode(ASK))).body))
    wanted = RANGE.replace("over", offer.session).replace("have=3", "have=0")
    answer = await call(node, "GET", wanted)
    data = await whole_body(await call(node, "GET", "/v1/segments/1", {"Range": "bytes=10-19"}))
    assert (answer.status, bytes(answer.body)) == (200, data)
    assert answer.headers[CRC_FIELD] == f"{crc(data):08x}"
    assert answer.headers[GENERATION_FIELD] == str(node.opened().log.view.rollbacks)
    refused(await call(node, "GET", RANGE), 404, "not-found")


async def test_a_block_is_asked_for_by_its_name() -> None:
    node = await replica()
    answer = await call(node, "GET", BLOCK)
    header = decode_header(bytes(answer.body))
    assert (answer.status, header.term, header.first_vlsn) == (200, TERM, 1)
    assert answer.headers[CRC_FIELD] == f"{crc(answer.body):08x}"
    told = json(await call(node, "GET", COPY))
    assert (told["term"], told["first"], told["last"]) == (TERM, 1, FIRST - 1)
    for target in (BLOCK, COPY):
        refused(await call(node, "GET", target.replace("group=sim", "group=h")), 409, "wrong-group")


@pytest.mark.parametrize(
    ("target", "old", "new"),
    [
        (RANGE, "&have=3", ""),
        (RANGE, "have=3", "have=-1"),
        (RANGE, "start=10", "start=20"),
        (RANGE, "start=10", "start=30"),
        (RANGE, "end=20", f"end={RESTORE_RANGE_BYTES_MAX + 11}"),
        (RANGE, "segment=1", "segment=0"),
        (RANGE, "segment=1", "segment=100000000"),
        (RANGE, "segment=1", "segment=one"),
        (BLOCK, "&to=n2", ""),
        (BLOCK, "first=1", "first=0"),
        (BLOCK, f"term={TERM}", "term=x"),
        (COPY, "&to=n2", ""),
        (COPY, "vlsn=2", "vlsn=0"),
        (COPY, "vlsn=2", "vlsn=x"),
    ],
)
async def test_a_bad_question_is_refused(target: str, old: str, new: str) -> None:
    refused(await call(await started(), "GET", target.replace(old, new)), 400, "bad-argument")


async def test_a_question_is_an_object_of_bounded_size() -> None:
    node = await started()
    refused(await call(node, "POST", "/v1/peer/restore", JSON, body=b"[]"), 400, "bad-body")
    refused(await call(node, "POST", "/v1/peer/restore", JSON, body=b"{"), 400, "bad-body")
    refused(await call(node, "POST", "/v1/peer/restore", JSON, body=b" " * (PEER_BODY_BYTES_MAX + 1)), 413, "too-large")
    refused(await call(node, "DELETE", "/v1/peer/restore"), 405, "not-allowed")


async def test_a_restore_is_asked_for_without_parameters() -> None:
    refused(await call(await started(), "POST", "/v1/admin/restore?now=true"), 400, "bad-argument")


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
