"""Roles: each route of the gateway needs one.

    metrics   how the node and the group are          read      entries, spans, segments, positions, states
    append    appends and transactions                consume   positions of consumers, messages of destinations
    define    destinations, and what is deleted       admin     orders to a node, its CDC consumers, the group

A role belongs to a route, thus to the handler that was found, and never to a path's text: a path can be written in many
ways. ``open`` is for routes that anybody may call, ``key`` for calls that only members of the group make. No role
includes another one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from repl.web.types import Handler, Request


class Role(StrEnum):
    OPEN = "open"
    METRICS = "metrics"
    READ = "read"
    APPEND = "append"
    CONSUME = "consume"
    DEFINE = "define"
    ADMIN = "admin"
    KEY = "key"


TOKEN_ROLES: Final = (Role.METRICS, Role.READ, Role.APPEND, Role.CONSUME, Role.DEFINE, Role.ADMIN)
"""The roles that a token can have, in the order in which they are shown."""
LOCAL_ROLES: Final = TOKEN_ROLES[:-1]
"""The roles of ``anonymous = "append"``."""


class Route(NamedTuple):
    """A handler, and the role that its callers need."""

    handler: Handler
    role: Role
    name: str | None = None
    """The consumer, sink or destination that the call is about, which a token's prefix of names must cover."""
    to_master: bool = False
    """True if a node that is not the master redirects the call."""
    peeking: Role | None = None
    """The role that suffices if the query has ``peek=true``."""

    def role_of(self, request: Request) -> Role:
        """Returns the role that this request needs. Raises ``BadArgument`` for a query that cannot be read."""
        if self.peeking is not None and request.query.get("peek") == "true":
            return self.peeking
        return self.role
