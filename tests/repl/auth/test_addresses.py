"""Whether a command that was signed for a host and port is for a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repl.auth.addresses import is_here
from repl.config import NodeConfig
from vlsn.ids import NodeName


def config(n1: str, n2: str, **settings: Any) -> NodeConfig:
    members = {NodeName("n1"): n1, NodeName("n2"): n2}
    return NodeConfig(name=NodeName("n1"), dir=Path("/n1"), members=members, **settings)


LOCAL = config("http://127.0.0.1:7701", "http://127.0.0.1:7702")
FAR = config("http://a.example:7701", "http://b.example:7701", listen="0.0.0.0:7701", hosts=("log.example:443",))
PROXIED = config("http://127.0.0.1:9001", "http://127.0.0.1:9002", listen="127.0.0.1:7701")


@pytest.mark.parametrize(
    ("of", "place", "here"),
    [
        *[(LOCAL, place, True) for place in ("127.0.0.1:7701", "localhost:7701", "127.0.0.2:7701", "[::1]:7701")],
        *[(LOCAL, place, False) for place in ("127.0.0.1:7702", "localhost:7702", "a.example:7701", "127.0.0.1", "")],
        *[(FAR, place, True) for place in ("a.example:7701", "10.0.0.1:7701", "log.example:443", "localhost:9000")],
        (FAR, "b.example:7701", False),
        *[(PROXIED, place, True) for place in ("127.0.0.1:9001", "127.0.0.1:7701", "localhost:7701")],
        (PROXIED, "127.0.0.1:9002", False),
    ],
)
def test_a_command_is_for_the_node_whose_address_it_names(of: NodeConfig, place: str, here: bool) -> None:
    assert is_here(of, dict(of.members), place) is here
