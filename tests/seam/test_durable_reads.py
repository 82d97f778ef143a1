"""No reader receives entries that may be rolled back, though they are beside durable ones in the ring."""

from __future__ import annotations

import msgspec
import pytest

from repl.read.long_polls import BLOCKS
from tests.fakes.loop import virtual
from tests.seam.nodes import Group
from tests.seam.test_membership import fed, told
from vlsn.format.block import decode_header
from vlsn.format.frame import padded

HEADER_BYTES = 64


async def get(group: Group, name: str, path: str, accept: str = "*/*") -> tuple[int, bytes]:
    url = f"{group.url(name)}{path}"
    response = await group.client.request("GET", url, headers={"Accept": accept}, timeout_s=5.0)
    return response.status, bytes(response.body)


def last_of(blocks: bytes) -> int:
    """Returns the last VLSN of consecutive blocks."""
    at = last = 0
    while at < len(blocks):
        header = decode_header(blocks[at:])
        last, at = header.last_vlsn, at + padded(HEADER_BYTES + header.body_bytes)
    return last


@pytest.mark.parametrize("begins", [0, 2])
@virtual
async def test_a_reader_of_recent_blocks_sees_the_durable_ones_alone(begins: int) -> None:
    """``begins`` is the number of VLSNs before the durable end at which it starts."""
    group = Group(951)
    await group.start()
    await group.serving()
    await fed(group, 2)
    durable = max(await told(group, 5))
    master = group.master
    group.net.split([master, "client"], [name for name in group.names if name != master])
    for number in range(3):
        status, answer = await group.append(b"may be rolled back %d" % number, to=master, acks="none")
        assert status == 200 and not answer["durable"]
    at = durable - begins
    for keys in ("", "&key="):
        status, body = await get(group, master, f"/v1/entries?from={at}{keys}")
        assert status == 200
        assert [msgspec.json.decode(line)["vlsn"] for line in body.splitlines()] == [*range(at, durable + 1)]
    status, body = await get(group, master, f"/v1/entries?from={at}", BLOCKS)
    assert (status, last_of(body)) == (200, durable)
    status, body = await get(group, master, f"/v1/entries/{durable + 1}")
    assert (status, msgspec.json.decode(body)["type"]) == (404, "not-yet")
    assert (await get(group, master, f"/v1/entries/{durable}"))[0] == 200
    group.net.heal()
    await group.stop()
    assert not group.fatal
