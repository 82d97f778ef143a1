"""The settings of nodes whose consumers are under test: one on each node, and one on whichever node leads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from harness.group.nodes import Group

ON_NODE, ON_MASTER = "each", "leads"
EVENTS_TIMEOUT_S: Final = 20.0
AHEAD_BYTES: Final = 4096
"""So small that the nodes' small ring overtakes a consumer that sleeps, which must then read from segments."""
RETRIES: Final = 1_000_000
"""So large that no consumer is parked, since they fail on purpose."""


def give_consumers(group: Group, folder: Path, seed: int) -> None:
    """Writes the tables ``[[cdc]]`` into every node's settings; recordings go into ``folder``."""
    options = f"options = {{ directory = {json.dumps(str(folder))}, seed = {seed} }}"
    tables = [
        line
        for name, run_on in ((ON_NODE, "node"), (ON_MASTER, "master"))
        for line in (
            "[[cdc]]",
            f'name = "{name}"',
            'consumer = "harness.captures.recorder:Recorder"',
            f'run_on = "{run_on}"',
            f"ahead_bytes = {AHEAD_BYTES}",
            f"events_timeout_s = {EVENTS_TIMEOUT_S}",
            f"retries_max = {RETRIES}",
            options,
            "",
        )
    ]
    for name in group.names:
        node = group.node(name)
        head, members, rest = node.config_path.read_text().partition("[members]")
        node.config_path.write_text(head + "\n".join(tables) + "\n" + members + rest)
        node.environment |= {"PYTHONPATH": str(Path(__file__).parents[2])}
