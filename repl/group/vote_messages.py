"""The messages of elections: votes between nodes, and the actions of the election rules.

``POST /v1/peer/vote`` carries a request and its reply; their numbers are in the range of a record or a block. The rules
(``election``) return actions, which ``electing`` executes in order.
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
"""A term that the candidate has stored before it requested votes."""
End = tuple[int, int]
"""The last term and the last VLSN of a log. Two logs are compared by their last term and last VLSN."""


class VoteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a vote. ``pre`` marks a pre-vote, which stores nothing. ``transfer`` means that the master itself
    asked for the election. ``highest_of_all`` means that every electable member has reported its log's end in this
    election, and the candidate's end is the highest."""

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
    """The change counter of the candidate's node file."""

    @property
    def end(self) -> End:
        return self.last_term, self.last_vlsn


class VoteReply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply of a voter. ``term`` is the voter's stored term, ``last_*`` is the end of its log. ``reason`` is the
    reason for a refusal. ``master`` is the master that the voter knows, or ""."""

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
    """The change counter of the voter's node file."""

    @property
    def end(self) -> End:
        return self.last_term, self.last_vlsn


def read_request(body: object) -> VoteRequest:
    """Decodes a request for a vote. Raises ``BadBody``."""
    return read_object(body, VoteRequest, "vote")


def read_reply(body: bytes) -> VoteReply:
    """Decodes the reply to a request for a vote. Raises ``BadBody``."""
    return read_json(body, VoteReply, "no answer to a vote")


class Stand(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``POST /v1/peer/stand``: the master of ``term`` asks ``to`` to take over. ``to`` has the master's
    whole log."""

    group: Name
    sender: Name
    to: Name
    term: StoredTerm


@dataclass(frozen=True, slots=True)
class Store:
    """An action: store term and vote in the node file, synced, before any later action."""

    term: Term
    voted_for: str


@dataclass(frozen=True, slots=True)
class Ask:
    """An action: send these requests for votes. The replies are passed to ``answered``."""

    requests: tuple[VoteRequest, ...]


@dataclass(frozen=True, slots=True)
class Lead:
    """An action: this node is the master of ``term``, and seals its TERM entry."""

    term: Term


@dataclass(frozen=True, slots=True)
class StepDown:
    """An action: stop sealing and feeds of this node's term if it is the master, then follow."""

    reason: str


Action = Store | Ask | Lead | StepDown
