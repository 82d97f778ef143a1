"""Questions and answers of appends, reads and feeds, shared by a node, its gateway and the client library."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

from vlsn.durability import SYNCED, GroupDurability
from vlsn.errors import BadArgument, VlsnLogError
from vlsn.format.block import Entry
from vlsn.format.records import AckNote, CommitEntry
from vlsn.ids import NUMBER_MAX, Incarnation, NodeName, Term, Vlsn
from vlsn.levels import LEVELS, Levels
from vlsn.state.producers import ProducerPlace
from vlsn.state.sinks import SinkState


class Acks(StrEnum):
    """The sync that an append waits for."""

    NONE = "none"
    MAJORITY = "majority"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Freshness:
    """How new a node must be for a read. ``linearizable``: it has all that was acknowledged before the question.
    ``at_least``: it has that VLSN durable; 0 for none. ``lag_max_s``: it has all that was acknowledged so many seconds
    before the question, or later; None for any lag."""

    linearizable: bool = False
    at_least: int = 0
    lag_max_s: float | None = None

    @property
    def is_any(self) -> bool:
        """True where every node will do."""
        return self == ANY


ANY = Freshness()
LINEARIZABLE = Freshness(linearizable=True)


class Appended(msgspec.Struct, frozen=True, gc=False):
    """An append as it is acknowledged.

    ``durable``: a majority had synced it. ``synced``: how many nodes had, the master among them. ``duplicate``: it was
    in the log before; VLSNs and term are the original's. ``durability``: the durability at which it was answered. While
    ``durable`` is false the master had it as ``local`` says, and the replicas that ``acks`` counts as ``replica``.
    """

    first: Vlsn
    last: Vlsn
    term: Term
    durable: bool
    synced: int
    acks: Acks
    duplicate: bool = False
    durability: GroupDurability = SYNCED

    def document(self) -> bytes:
        """Makes the document that HTTP answers."""
        held = self.durability
        return b'{"first":%d,"last":%d,"term":%d,"durable":%s,"synced":%d,"acks":"%s","durability":%s%s}' % (
            self.first,
            self.last,
            self.term,
            b"true" if self.durable else b"false",
            self.synced,
            self.acks.encode(),
            _SYNCED if held is SYNCED else msgspec.json.encode(held),
            b',"duplicate":true' if self.duplicate else b"",
        )


_SYNCED = msgspec.json.encode(SYNCED)
Done = Callable[[Appended | VlsnLogError], None]


class Pending(Protocol):
    """One append under way."""

    @property
    def doubt(self) -> asyncio.Future[None] | None:
        """A future, done once it is decided whether this one is refused, where that takes a while. The sender's later
        appends wait, for a refusal refuses them, too."""
        ...

    def expire(self) -> None:
        """Expires the append: calls ``done`` with ``OutcomeUnknown``, unless it was called before.

        An append that is still queued and not sealed may be dropped and answered with a safer error.
        """
        ...

    def take_back(self) -> None:
        """Takes the append back: one before it in its sender's order was refused. ``done`` is called now with
        ``NotMaster`` where nothing can have been logged of it yet. Else it takes its course."""
        ...


@dataclass(frozen=True, slots=True)
class EntryPage:
    """Entries in rising VLSNs, and where the next read starts; ``term`` is that of the VLSN before it, 0 where that is
    not known."""

    entries: list[Entry]
    next_vlsn: int
    durable: int
    term: int = 0


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


class Handle(NamedTuple):
    """The name of an open transaction: ``t-<id>-<born>-<term>``.

    ``id`` names its commit in the log, ``born`` is a VLSN that was durable when it began, and ``term`` the one of the
    master that has its entries."""

    id: int
    born: int
    term: int

    def __str__(self) -> str:
        return f"t-{self.id:016x}-{self.born}-{self.term}"

    @classmethod
    def parse(cls, text: str) -> Handle:
        """Raises ``BadArgument`` for text that is no handle of a master."""
        match = _HANDLE.match(text)
        numbers = (int(match[1], 16), int(match[2]), int(match[3])) if match is not None else (0, 0, 0)
        if not 0 < numbers[0] <= NUMBER_MAX or max(numbers) > NUMBER_MAX:
            raise BadArgument(
                f"{text[:80]!a} is no transaction: it is t-ID-VLSN-TERM, as POST /v1/transactions answers"
            )
        return cls(*numbers)


_HANDLE = re.compile(r"t-([0-9a-f]{16})-(0|[1-9][0-9]{0,18})-([1-9][0-9]{0,18})\Z", re.ASCII)


@dataclass(slots=True, eq=False)
class Puts:
    """The names of the small state that a COMMIT sets, to JSON or (None) to nothing. ``expects``: for some of them the
    VLSN of the COMMIT that must have set them last, 0 for none; nothing is logged where another one has."""

    values: Mapping[str, bytes | None]
    expects: Mapping[str, int] = field(default_factory=dict)
    acks: Mapping[str, AckNote] = field(default_factory=dict)
    """The notes of destinations' acknowledgements, by uuid."""
    unlogged: Callable[[], None] = lambda: None
    """A call for when the queue gives back the append that carries it."""

    def entry(self) -> bytes:
        """Makes the value of that COMMIT. Raises ``BadBody`` for too much of it."""
        null = msgspec.Raw(b"null")
        put = {name: msgspec.Raw(value) if value is not None else null for name, value in self.values.items()}
        return CommitEntry(put=put, acks=dict(self.acks)).encode()


class ConsumerAt(msgspec.Struct, frozen=True):
    """A named position, as it is reported.

    ``next`` is the VLSN to be read next, ``term`` that of the one before it (0: not known), ``at`` the VLSN of the
    COMMIT that set it, ``by`` what that commit was called. ``lag_vlsns`` counts the durable VLSNs from the user's next
    entry on, ``lag_s`` the seconds since that entry; None if this node cannot say."""

    name: str
    next: int
    term: int
    at: int
    lag_vlsns: int | None = None
    lag_s: float | None = None
    by: str = ""


class ConsumerChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A position that is asked for. ``at``: the position that it starts from, by the VLSN of its COMMIT, 0 for none;
    None: whatever it is."""

    next: int
    at: int | None = None
    by: str = ""
    term: int = 0
    """The term of the VLSN before ``next``, of another group's log; this group's log knows its own."""


class SinkAt(msgspec.Struct, frozen=True):
    """A sink, as it is reported. ``at`` is the VLSN of the COMMIT that set its state."""

    name: str
    at: int
    state: SinkState


class SinkChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A state that the commit of a part sets. ``at``: the state that it starts from, by the VLSN of its COMMIT, 0 for
    none."""

    state: SinkState
    at: int


class CommitSets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The positions of consumers and the states of sinks that a commit sets, each by its name."""

    positions: dict[str, ConsumerChange] = {}
    sinks: dict[str, SinkChange] = {}


class Span(msgspec.Struct, frozen=True):
    """A run of VLSNs up to ``next`` (exclusive), of about ``bytes`` of files; ``term`` is that of the VLSN before
    ``next``."""

    next: int
    term: int
    bytes: int


class Spans(msgspec.Struct, frozen=True):
    """Spans that follow on one another; the log's first VLSN (0: none) and its durable end, as a node knows them."""

    first: int
    durable: int
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class FeedHello:
    """A replica that asks for a feed, and the node that it asks; the headers of ``WS /v1/feed``."""

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


class DestinationChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """A change of a destination. A field left out stays as it is; a new destination gets the default."""

    prefix: str | None = None
    from_: int | str | None = None
    """The first VLSN of a new one: ``"start"``, ``"end"`` (the default), or a VLSN."""
    max_bytes: int | None = None
    max_messages: int | None = None
    full_policy: str | None = None
    ack_timeout_s: float | None = None
    attempts_max: int | None = None
    dead_letter: str | None = None
    page_limit_bytes: int | None = None
    page_limit_messages: int | None = None
    page_full_policy: str | None = None
    redelivery_delay_s: float | None = None
    redelivery_factor: float | None = None
    redelivery_delay_s_max: float | None = None
    max_out: int | None = None
    uuid: str | None = None
    """The name of this one making of it, 16 hex digits: sent again, it is known."""
