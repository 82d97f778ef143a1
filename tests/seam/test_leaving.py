"""A member whose removal of itself is not durable yet may be the only electable one."""

from __future__ import annotations

import asyncio

from tests.fakes.loop import virtual
from tests.seam.nodes import Group
from tests.seam.test_membership import changed, fed, listed


@virtual
async def test_a_master_that_left_itself_out_stands_until_that_is_durable() -> None:
    """Only the master, of four nodes, has the list without it; another node is lost. Neither of the two others gets the
    vote of the master, whose log is longer, and which is no member by its own list."""
    group = Group(811, 4)
    await group.start()
    await group.serving()
    await fed(group, 3)
    assert (await group.append(b"everywhere", acks="all"))[0] == 200
    master = group.master
    others = [name for name in group.names if name != master]
    asked = asyncio.ensure_future(changed(group, change="remove", name=master))
    last = group.nodes[master].opened().log.view.range.last
    for name in others:
        group.net.block(master, name)
    await group.until(lambda: group.nodes[master].opened().log.view.range.last > last, "it has logged the list")
    for name in others:
        group.net.cut(master, name)  # what is under way arrives nowhere
    group.kill(others[0])
    await group.until(lambda: not group.nodes[master].member.is_master(), "it has stepped down")
    asked.cancel()
    assert master not in listed(group, master)
    assert all(group.nodes[name].opened().log.view.range.last == last for name in others[1:])
    group.net.heal()
    await group.until(
        lambda: any(group.nodes[name].member.is_master() for name in others[1:]), "another one leads", 30.0
    )
    await group.serving()
    assert master not in listed(group)
    await group.stop()
    assert not group.fatal
