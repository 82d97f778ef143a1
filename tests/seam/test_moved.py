"""Members at new URLs, and nodes whose settings still have the old ones."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from repl.config import NodeConfig
from repl.lead.leading import Leading
from tests.fakes.loop import virtual
from tests.seam.nodes import PORT, Group
from tests.seam.test_membership import changed, electable, fed, has_all, ordered, told
from vlsn.ids import NodeName

MOVED = "n3"


class Moving(Group):
    """A group whose ``n3`` moves to another port; only its own settings have it."""

    port = PORT

    def config(self, name: str) -> NodeConfig:
        told = super().config(name)
        if name != MOVED:
            return told
        members = {**told.members, NodeName(MOVED): self.url(MOVED)}
        return replace(told, members=members, listen=f"{MOVED}:{self.port}")

    def url(self, name: str) -> str:
        return f"http://{MOVED}:{self.port}" if name == MOVED else super().url(name)


class Forgetful(Moving):
    """A group in which no other node's settings ever change."""

    def config(self, name: str) -> NodeConfig:
        told = super().config(name)
        if name == MOVED:
            return told
        return replace(told, members={**told.members, NodeName(MOVED): f"http://{MOVED}:{PORT}"})


async def moves(group: Moving) -> None:
    """Removes a member, and adds it where it is now, with its log."""
    group.machine("n4")
    await group.start("n4")
    await changed(group, change="add", name="n4", url=group.url("n4"))
    await electable(group, "n4")
    await changed(group, change="remove", name=MOVED)
    group.kill(MOVED)
    group.port = PORT + 1
    await group.start(MOVED)
    await changed(group, change="add", name=MOVED, url=group.url(MOVED))
    await electable(group, MOVED)


@pytest.mark.parametrize("again", [False, True], ids=["up all the time", "started again"])
@virtual
async def test_a_master_at_another_url_than_the_settings_say_is_followed(again: bool) -> None:
    group = Forgetful(511)
    await group.start()
    await group.serving()
    await fed(group, 2)
    entries = await told(group, 3)
    await moves(group)
    if again:
        others = [name for name in group.names if name not in (group.master, MOVED)]
        group.kill(*others)
        await asyncio.sleep(0.1)
        await group.start(*others)
        await fed(group, 3)
    for _ in range(3):  # the first one may meet nobody where the settings say
        path = f"{group.url(group.master)}/v1/admin/transfer?to={MOVED}"
        response = await group.client.request("POST", path, timeout_s=10.0)
        if response.status == 200:
            break
    await group.until(lambda: group.master == MOVED, "it leads", 30)
    await fed(group, 3)
    entries |= await told(group, 3, "moved ")
    await has_all(group, entries)
    await group.stop()
    assert not group.fatal


@virtual
async def test_an_order_to_move_a_member_may_be_sent_again() -> None:
    """An operator whose order got no answer repeats it: the member is there already, and nothing more is logged."""
    group = Moving(512)
    await group.start()
    await group.serving()
    await fed(group, 2)
    if group.master == MOVED:
        await group.client.request("POST", f"{group.url(MOVED)}/v1/admin/transfer", timeout_s=10.0)
        await group.until(lambda: group.master not in ("", MOVED), "another one leads", 30)
    group.kill(MOVED)
    group.port = PORT + 1
    await group.start(MOVED)
    first = await changed(group, change="move", name=MOVED, url=group.url(MOVED))
    last = group.nodes[group.master].opened().log.view.allocated
    again = await changed(group, change="move", name=MOVED, url=group.url(MOVED))
    assert (again["vlsn"], again["members"][2]["url"]) == (first["vlsn"], group.url(MOVED))
    assert group.nodes[group.master].opened().log.view.allocated == last
    leading = group.nodes[group.master].member.role
    assert isinstance(leading, Leading)
    leading.changes.settled = False  # as while the entry may still be rolled back: it is no answer
    third = await changed(group, change="move", name=MOVED, url=group.url(MOVED))
    assert third["vlsn"] > first["vlsn"]
    status, refused = await ordered(group, change="move", name="n1", url=group.url(MOVED))
    assert (status, refused["type"]) == (400, "bad-argument"), refused
    await group.stop()
    assert not group.fatal
