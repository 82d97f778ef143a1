"""Blocks for members: by name any node sends a block that it has, by VLSN alone only a durable one."""

from __future__ import annotations

from urllib.parse import urlencode

import msgspec

from tests.fakes.loop import virtual
from tests.seam.nodes import Group
from tests.seam.test_membership import fed, told
from vlsn.format.block import decode_header
from vlsn.ids import Vlsn


async def block(group: Group, of: str, *, term: int, first: int) -> tuple[int, bytes]:
    sender = next(name for name in group.names if name != of)
    asked = urlencode({"group": "sim", "sender": sender, "to": of, "term": term, "first": first})
    response = await group.client.request("GET", f"{group.url(of)}/v1/peer/block?{asked}", timeout_s=5.0)
    return response.status, bytes(response.body)


@virtual
async def test_by_its_vlsn_alone_no_block_is_given_that_may_be_rolled_back() -> None:
    """The request names no term. A block of a master that is cut off would replace another block of the group."""
    group = Group(941)
    await group.start()
    await group.serving()
    await fed(group, 2)
    durable = max(await told(group, 3))
    master = group.master
    group.net.split([master, "client"], [name for name in group.names if name != master])
    status, answer = await group.append(b"nobody else has it", to=master, acks="none")
    assert status == 200 and not answer["durable"]
    first, term = answer["first"], answer["term"]
    status, data = await block(group, master, term=0, first=first)
    assert (status, msgspec.json.decode(data)["type"]) == (404, "not-found")
    status, data = await block(group, master, term=term, first=first)
    assert (status, decode_header(data).first_vlsn) == (200, first)
    status, data = await block(group, master, term=0, first=durable)
    assert (status, decode_header(data).first_vlsn) == (200, durable)
    group.net.heal()
    await group.until(lambda: group.nodes[group.master].dtvlsn() >= Vlsn(first), "whoever leads goes on")
    await group.stop()
    assert not group.fatal
