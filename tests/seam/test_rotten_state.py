"""Rot in the ``state`` store of a running node: the scrub finds it, and rewrites the store before an open loses it."""

from __future__ import annotations

import pytest

from tests.fakes.loop import virtual
from tests.seam.nodes import Group
from tests.seam.test_once import append
from vlsn.levels import LEVELS
from vlsn.state.state_store import RECORD_KEY
from vlsn.verify.verify import verify

SUBMISSIONS = 8


@pytest.mark.parametrize("kind", ["p", "record"])
@virtual
async def test_rot_under_a_node_that_is_up_is_written_over_out_of_memory(kind: str) -> None:
    """A checkpoint alone does not rewrite a producer's record while nothing changes it."""
    group = Group(31, levels=LEVELS, scrub_period_s=2.0)
    await group.start()
    await group.serving()
    for sequence in range(SUBMISSIONS):
        assert (await append(group, sequence))[0] == 200
    node, machine = group.nodes["n3"], group.machines["n3"]
    last = group.nodes[group.master].opened().log.view.range.last
    await group.until(lambda: node.dtvlsn() == last, "n3 has it all, durable")
    await node.services.administration.checkpoint()
    contents = machine.stores.contents["/n3/state"]
    (life,) = [key for key in contents.keys if key.startswith(b"p")]
    machine.stores.corrupt("/n3/state", life if kind == "p" else RECORD_KEY, bit=9)
    assert not verify(machine.disk, machine.stores, "/n3", live=True).ok

    await group.until(lambda: node.member.events.counts["state.rotten"] == 1, "the scrub meets it")
    await group.until(lambda: verify(machine.disk, machine.stores, "/n3", live=True).ok, "it is written anew")
    group.kill("n3")
    await group.start("n3")
    await group.until(lambda: group.nodes["n3"].dtvlsn() >= last, "n3 is back")
    assert [path for path in machine.stores.contents if path.startswith("/n3/state")] == ["/n3/state"]
    await group.stop()
    assert not group.fatal
