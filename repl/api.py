"""What HTTP and the client's socket ask of a node.

The gateway (``repl/http``) checks what came from outside and turns it into these calls; the node answers
in its own types or raises one of ``vlsn.errors``, whose slug becomes the answer's type.  Everything here is
called on the event loop's thread, and nothing blocks it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from vlsn.errors import VlsnLogError
from vlsn.format.block import Entry
from vlsn.format.seal import Submission
from vlsn.ids import Incarnation, NodeName, Term, Vlsn
from vlsn.levels import LEVELS, Levels
from vlsn.seams import Channel
from vlsn.state.producers import ProducerPlace


class Acks(StrEnum):
    """Whose sync an append waits for."""

    NONE = "none"
    MAJORITY = "majority"
    ALL = "all"


class Appended(msgspec.Struct, frozen=True, gc=False):
    """An append as it is acknowledged.

    ``durable``: a majority had synced it.  ``synced``: how many nodes had, the master among them.  ``duplicate``: it
    was in the log before; VLSNs and term are the original's.
    """

    first: Vlsn
    last: Vlsn
    term: Term
    durable: bool
    synced: int
    acks: Acks
    duplicate: bool = False

    def document(self) -> bytes:
        """As HTTP answers it."""
        return b'{"first":%d,"last":%d,"term":%d,"durable":%s,"synced":%d,"acks":"%s"%s}' % (
            self.first,
            self.last,
            self.term,
            b"true" if self.durable else b"false",
            self.synced,
            self.acks.encode(),
            b',"duplicate":true' if self.duplicate else b"",
        )


Done = Callable[[Appended | VlsnLogError], None]


class Pending(Protocol):
    """One append under way."""

    @property
    def doubt(self) -> asyncio.Future[None] | None:
        """Done once it is decided whether this one is refused, where that takes a while: what comes behind it in its
        sender's order waits, for after a refusal nothing of that is logged."""
        ...

    def expire(self) -> None:
        """Its time is over: ``done`` is called now with ``OutcomeUnknown``, unless it was called before.

        What is still queued and not sealed may be dropped and answered with a safer error.
        """
        ...

    def take_back(self) -> None:
        """One before it in its sender's order was refused: ``done`` is called now with ``NotMaster`` where nothing can
        have been logged of it yet.  Else it takes its course."""
        ...


@dataclass(frozen=True, slots=True)
class EntryPage:
    """Entries in rising VLSNs, and where the next read starts."""

    entries: list[Entry]
    next_vlsn: int
    durable: int


@dataclass(frozen=True, slots=True)
class BlockPage:
    """Whole blocks (``vlsn.format.block``), each padded to 8 bytes, so that one follows another."""

    data: list[bytes]
    next_vlsn: int
    durable: int


@dataclass(frozen=True, slots=True)
class ProducerAt:
    """A producer's submissions up to VLSN ``durable``; ``forgotten_to``: nobody heard of after it is forgotten."""

    place: ProducerPlace
    durable: int
    forgotten_to: int


@dataclass(frozen=True, slots=True)
class FeedHello:
    """Who asks for a feed, and of whom; the headers of ``WS /v1/feed``."""

    group: str
    node: NodeName
    incarnation: Incarnation
    to: NodeName
    to_incarnation: Incarnation | None
    term: Term
    """The highest term that the asking node has stored."""
    process: int
    """A random u64 that each start of a process draws."""
    levels: Levels = LEVELS


class NodeApi(Protocol):
    """One node, as its gateway sees it."""

    @property
    def name(self) -> str: ...

    @property
    def group(self) -> str: ...

    @property
    def incarnation(self) -> int: ...

    @property
    def levels(self) -> Levels:
        """What it speaks."""
        ...

    def addresses(self) -> Collection[str]:
        """What this node may be called by: hosts, with a port or without, and URLs."""
        ...

    def status(self) -> dict[str, Any]:
        """The object of ``GET /v1/status``."""
        ...

    def events_since(self, number: int, limit: int) -> dict[str, Any]:
        """The object of ``GET /v1/events`` (``repl.events``)."""
        ...

    def readiness(self) -> list[str]:
        """Reasons why this node is not ready to serve durable reads; none when it is."""
        ...

    def is_master(self) -> bool: ...

    def master_url(self) -> str | None:
        """Where appends go; ``None`` while no master is known."""
        ...

    def dtvlsn(self) -> int:
        """The highest VLSN known durable: what readers may see."""
        ...

    def submit(self, submission: Submission, acks: Acks, done: Done, born: int | None = None) -> Pending:
        """Queues one atomic append; of a producer's, one that is in the queue or the log already is not queued again,
        and answered when its original meets ``acks``.  ``born``: a VLSN that was durable before the producer's first.

        ``done`` is called exactly once, never from inside this call.  Raises at once, with nothing logged:
        ``QueueFull``, ``NotMaster``, ``InsufficientReplicas``, ``NoSpace``, ``TooLarge``, ``Halted``; of a producer
        ``OutOfSequence``, ``UnknownProducer``, ``DuplicateForgotten``.
        """
        ...

    async def read(
        self, from_vlsn: int | None, *, limit: int, bytes_max: int, wait_s: float, all_kinds: bool
    ) -> EntryPage:
        """Visible entries from ``from_vlsn`` (``None``: the first there is) on.

        At most ``limit`` entries and about ``bytes_max`` bytes, never less than one entry when one is
        there; waits up to ``wait_s`` for the first.  Entries above the durable end are never in it.
        ``next_vlsn`` moves past what was skipped (TERM, GROUP …).  Raises ``Trimmed``, ``Damaged``,
        ``Halted``.
        """
        ...

    async def read_blocks(self, from_vlsn: int | None, *, bytes_max: int, wait_s: float) -> BlockPage:
        """Whole durable blocks from the one that holds ``from_vlsn`` on; raises as ``read`` does."""
        ...

    async def read_one(self, vlsn: int) -> Entry:
        """Raises ``NotYet``, ``NotData``, ``Trimmed``, ``Damaged``."""
        ...

    def check_place(self, vlsn: int, term: int) -> None:
        """Raises ``NotInLog`` when the log cannot hold, at ``vlsn``, the entry of ``term`` that a reader has seen."""
        ...

    async def confirm(self, timeout_s: float) -> int:
        """A VLSN at or past everything that was acknowledged as durable before the call; reads here show it on
        return.  Raises ``NotMaster`` when no majority confirms a master in time, ``Lagging`` when this node is not
        that far."""
        ...

    async def producer(self, producer: int, timeout_s: float) -> ProducerAt:
        """How far that producer has come in what is durable; as ``confirm`` is, and raises as it does."""
        ...

    async def peer_read_index(self, body: dict[str, Any]) -> dict[str, Any]:
        """``POST /v1/peer/read_index``.  Raises ``NotMaster``, ``FeedRefused``, ``BadBody``."""
        ...

    async def check_feed(self, hello: FeedHello) -> None:
        """Raises the ``FeedRefused`` (or ``NotMaster``, ``Halted``) that refuses it before the upgrade."""
        ...

    async def serve_feed(self, hello: FeedHello, channel: Channel) -> None:
        """The whole life of a feed; returns when it ended, for whatever reason.  Closes nothing itself."""
        ...

    async def segments(self) -> list[dict[str, Any]]:
        """The log's files: ``number``, ``file``, ``end`` (bytes up to the synced length), VLSNs."""
        ...

    def segment_end(self, number: int) -> int:
        """Synced bytes of that segment.  Raises ``NotFound``, or ``Trimmed`` once it was cleaned away."""
        ...

    async def read_segment(self, number: int, start: int, end: int) -> bytes:
        """Bytes ``start`` to ``end`` (exclusive, at most ``segment_end``) of the file as it is."""
        ...

    async def checkpoint(self) -> dict[str, Any]: ...

    async def rotate(self) -> dict[str, Any]: ...

    async def clean(self, *, dry_run: bool) -> dict[str, Any]:
        """A pass of cleaning, or what one would do; ``vlsn.write.cleaning.CleaningReport`` and the node's name."""
        ...

    async def peer_hello(self, body: dict[str, Any]) -> dict[str, Any]:
        """``POST /v1/peer/hello``: founding and discovery.  Raises ``FeedRefused``, ``BadBody``."""
        ...

    async def restore(self) -> dict[str, Any]:
        """The log is given up and restored from a peer.  Raises ``NotAllowed`` while this node leads or restores."""
        ...

    async def restore_ask(self, body: dict[str, Any]) -> bytes:
        """``POST /v1/peer/restore`` (``vlsn.repair.restore_messages``); the answer's JSON.
        Raises as ``repl.repair.providing`` says."""
        ...

    async def restore_range(self, session: str, number: int, start: int, end: int, have: int) -> tuple[bytes, int]:
        """Bytes of a segment for a restoring peer, and the log's generation.  Raises ``NotFound`` when the session
        is over, ``NotYet``, ``Trimmed``."""
        ...

    async def peer_block(self, asked: Mapping[str, str], term: int, first: int) -> bytes:
        """``GET /v1/peer/block``: a block by its name, for a member that mends its own; ``asked`` holds the names of
        group, sender and receiver.  Raises ``FeedRefused``, ``NotFound``, ``Damaged``."""
        ...

    async def peer_copy(self, asked: Mapping[str, str], vlsn: int) -> dict[str, Any]:
        """``GET /v1/peer/copy``: which block holds ``vlsn``, and its SHA-256, for a member whose own differs from
        another's; ``asked`` as above.  Raises ``FeedRefused``, ``NotFound``, ``Damaged``."""
        ...

    async def transfer(self, to: str | None) -> dict[str, Any]:
        """Moves mastership to the member ``to``, or to the one that is furthest.  Raises ``NotMaster``,
        ``BadArgument``, ``Unreachable``."""
        ...

    def group_document(self) -> dict[str, Any]:
        """``GET /v1/group``: the members as this node's log lists them.  Raises ``NotMaster`` while it is not open."""
        ...

    async def change_group(self, body: dict[str, Any]) -> dict[str, Any]:
        """``POST /v1/admin/group`` (``repl.group.membership.Change``); durable on return.
        Raises as ``Changes.change``."""
        ...

    async def peer_stand(self, body: dict[str, Any]) -> dict[str, Any]:
        """``POST /v1/peer/stand``: the master asks this node to take over.  Raises as ``peer_vote``, ``StaleTerm``."""
        ...

    async def peer_vote(self, body: dict[str, Any]) -> dict[str, Any]:
        """``POST /v1/peer/vote``: what the reply says is synced.  Raises ``FeedRefused``, ``BadBody``, ``NotMaster``
        while the log is not open."""
        ...

    def metrics_text(self) -> bytes:
        """Prometheus' text format."""
        ...
