"""The metrics of a node: readers and workers that it has cut off."""

from __future__ import annotations

from repl.web.slices import at_once
from tests.fakes.loop import virtual
from tests.fakes.net import FakeListener
from tests.seam.nodes import Group


@virtual
async def test_who_was_given_up_is_counted() -> None:
    group = Group(1, 1)
    await group.start()
    await group.serving()
    node = group.nodes["n1"]
    assert isinstance(node.listener, FakeListener)
    assert "vlsnlog_readers_given_up_total 0.0" in at_once(node.services.monitoring.metrics_text()).decode()
    node.listener.given_up, node.listener.untaken_bytes = 3, 70
    said = at_once(node.services.monitoring.metrics_text()).decode()
    assert "vlsnlog_readers_given_up_total 3.0" in said
    assert "vlsnlog_untaken_bytes 70.0" in said
    assert "vlsnlog_handed_bytes 0.0" in said and "vlsnlog_workers_given_up_total 0.0" in said
    assert node.handed is not None
    node.handed.bytes, node.handed.given_up = 80, 4
    said = at_once(node.services.monitoring.metrics_text()).decode()
    assert "vlsnlog_handed_bytes 80.0" in said and "vlsnlog_workers_given_up_total 4.0" in said
    await group.stop()
