"""One kind of attack: its parameters, and the limits of its cost to the group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from repl.cluster import Cluster

HEARTBEAT_S = 0.2
ELECTION_TIMEOUT_S = 1.0
"""The default election timeout of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The cost that an attack may have; in seconds on a machine without other work."""

    p99_s: float = HEARTBEAT_S
    """The 99th percentile of ``/healthz``, on each node."""
    longest_s: float = ELECTION_TIMEOUT_S
    """The longest silence of ``/healthz``."""
    append_p99_s: float = ELECTION_TIMEOUT_S
    same_lead: bool = True
    errors: int = 0
    """The allowed number of failed appends of well-behaved clients."""
    nodes_up: bool = True
    """True if every node's process must survive."""


@dataclass(slots=True)
class Scene:
    """A running group, and an attacker beside it."""

    cluster: Cluster
    master: str
    """The name of the node that leads as the attack begins."""
    seconds: float
    """The seconds of an attack that can go on for ever."""
    say: Callable[[str], None]
    found: list[str] = field(default_factory=list)
    """Faults that the attack itself found."""

    @property
    def master_url(self) -> str:
        return self.url(self.master)

    @property
    def replicas(self) -> list[str]:
        """The names of the other nodes."""
        return [node.name for node in self.cluster.nodes if node.name != self.master]

    def url(self, name: str) -> str:
        return self.cluster.node(name).url


Attack = Callable[[Scene], Awaitable[str]]
"""Returns when it is over, with a short description of its requests."""


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    says: str
    """One line, for ``--help`` and the documents."""
    attack: Attack
    limits: Limits = Limits()
    settings: dict[str, str | int | float] = field(default_factory=dict)
    """The settings of the nodes."""
