"""The messages of elections: votes between nodes, and what the core wants done.

``POST /v1/peer/vote`` carries the two messages; their numbers are within what a record or a block can hold.  The core
(``election``) gives actions, in an order that its owner (``electing``) keeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from vlsn.format.feed_messages import STORED_TERM_MAX, Hex, Name, Number, StoredTerm
from vlsn.format.json_messages import read_json, read_object
from vlsn.ids import Term

StoodTerm = Annotated[int, Meta(ge=1, le=STORED_TERM_MAX)]
"""A term that the candidate has stored before."""
End = tuple[int, int]
"""Last term and last VLSN of a log; logs rank by it."""


class VoteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``pre``: would you?  ``transfer``: the master itself asked for it. ``highest_of_all``: every electable member has
    reported its end in this election, and this one's is the highest."""

    group: Name
    sender: Name
    incarnation: Hex
    to: Name
    term: StoodTerm
    pre: bool
    last_term: Number
    last_vlsn: Number
    transfer: bool = False
    highest_of_all: bool = False
    sequence: Number = 0
    """The sequence of the candidate's node file."""

    @property
    def end(self) -> End:
        return self.last_term, self.last_vlsn


class VoteReply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply of a voter: ``term`` is its stored one, ``last_*`` the end of its log. ``reason`` is that of a refusal;
    ``master`` is the one that the voter knows, "" for none."""

    sender: Name
    incarnation: Hex
    term: StoredTerm
    pre: bool
    granted: bool
    last_term: Number
    last_vlsn: Number
    reason: str = ""
    master: str = ""
    sequence: Number = 0
    """The sequence of the voter's node file."""

    @property
    def end(self) -> End:
        return self.last_term, self.last_vlsn


def read_request(body: object) -> VoteRequest:
    """Raises ``BadBody``."""
    return read_object(body, VoteRequest, "vote")


def read_reply(body: bytes) -> VoteReply:
    """Raises ``BadBody``."""
    return read_json(body, VoteReply, "no answer to a vote")


class Stand(msgspec.Struct, frozen=True, kw_only=True):
    """``POST /v1/peer/stand``: the master of ``term`` asks ``to``, which has all of its log, to take over."""

    group: Name
    sender: Name
    to: Name
    term: StoredTerm


@dataclass(frozen=True, slots=True)
class Store:
    """Write term and vote to the node file, synced, before any action behind this one."""

    term: Term
    voted_for: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Send to each of these; their replies come back to ``answered``."""

    requests: tuple[VoteRequest, ...]


@dataclass(frozen=True, slots=True)
class Lead:
    """This node is the master of ``term``: seal its TERM entry."""

    term: Term


@dataclass(frozen=True, slots=True)
class StepDown:
    """End sealing and feeds of this node's term, if it leads; it follows from here on."""

    reason: str


Action = Store | Ask | Lead | StepDown
