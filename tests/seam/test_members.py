"""Members that a node cannot reach: in the status of every node, not only of the master."""

from __future__ import annotations

from tests.fakes.loop import virtual
from tests.seam.nodes import Group
from tests.seam.test_membership import fed


def silent(group: Group, name: str) -> dict[str, str]:
    """Returns the members that ``name`` could not reach, and the reasons."""
    members = group.nodes[name].services.monitoring.status()["members"]
    return {member["name"]: member["silent"] for member in members if member["silent"]}


@virtual
async def test_a_replica_tells_of_a_member_that_is_dead_until_it_is_back() -> None:
    group = Group(71)
    await group.start()
    await group.serving()
    await fed(group, 2)
    dead, witness = (name for name in group.names if name != group.master)
    await group.until(lambda: not silent(group, witness), "everybody answers")
    group.kill(dead)
    await group.until(lambda: set(silent(group, witness)) == {dead}, f"{witness} finds {dead} silent")
    assert f"http://{dead}" in silent(group, witness)[dead]
    await group.until(lambda: set(silent(group, group.master)) == {dead}, "the master finds it silent, too")
    await group.start(dead)
    await group.until(lambda: not silent(group, witness), f"{witness} hears of {dead} again")
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_node_that_is_alone_tells_of_everybody() -> None:
    group = Group(72)
    await group.start()
    await group.serving()
    await fed(group, 2)
    alone, *others = group.names
    for name in others:
        group.kill(name)
    await group.until(lambda: set(silent(group, alone)) == set(others), f"{alone} finds nobody")
    await group.start(*others)
    await group.until(lambda: not silent(group, alone), f"{alone} finds them again")
    await group.stop()
    assert not group.fatal
