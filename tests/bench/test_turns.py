"""The bench of the loop's turns asks for each call there is."""

from __future__ import annotations

from repl.node.gateway import Gateway
from tests.bench.turns import ROUTES
from tests.repl.web.one_node import started


async def test_each_call_of_get_is_asked_for() -> None:
    asked = {route.partition("?")[0] for route in ROUTES}
    served = {path for path, methods in Gateway((await started()).services)._paths.items() if "GET" in methods}
    assert served <= asked
