"""The data types of appends, reads and feeds, which a node, its HTTP handlers and the client library share."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

import msgspec

from vlsn.durability import SYNCED, GroupDurability
from vlsn.errors import BadArgument, VlsnLogError
from vlsn.format.block import Entry
from vlsn.format.records import AckNote, CommitEntry
from vlsn.ids import NUMBER_MAX, Incarnation, NodeName, Term, Vlsn
from vlsn.levels import LEVELS, Levels
from vlsn.state.producer_place import ProducerPlace
from vlsn.state.sinks import SinkState

START, END = "start", "end"
"""Where a reader begins if it names no VLSN and no time: at the log's first entry, or after its last durable one."""


class Acks(StrEnum):
    """The members whose syncs an append waits for before it is answered."""

    NONE = "none"
    MAJORITY = "majority"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Freshness:
    """How new a node's data must be for a read. ``linearizable``: the node has every entry that was acknowledged before
    the read was requested. ``at_least``: this VLSN is durable on the node; 0 requires none. ``lag_max_s``: the node has
    every entry that was acknowledged ``lag_max_s`` seconds or longer before the read was requested; None allows any
    lag."""

    linearizable: bool = False
    at_least: int = 0
    lag_max_s: float | None = None


ANY = Freshness()
"""Requires nothing: any node may answer the read."""
LINEARIZABLE = Freshness(linearizable=True)


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The answer to an acknowledged append.

    ``durable``: a majority of the nodes had synced the append. ``synced``: the number of nodes that had synced the
    append, the master included. ``duplicate``: the same append was in the log already; the VLSNs and the term are those
    of the original. ``durability``: the durability at which the append was answered. While ``durable`` is false, the
    master has stored the append as ``durability.local`` says, and the replicas that ``acks`` requires have stored it as
    ``durability.replica`` says.
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
        """Returns the JSON document with which the HTTP API answers."""
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
    """One append that is not answered yet."""

    @property
    def doubt(self) -> asyncio.Future[None] | None:
        """A future that completes once the node has decided whether to refuse this append, or None if that is decided
        at once. The sender's later appends wait for this future, because a refusal of this append refuses them, too."""
        ...

    def expire(self) -> None:
        """Ends the wait for the append: calls ``done`` with ``OutcomeUnknown``, unless ``done`` was called before.

        An append that is queued and not sealed may be dropped. A dropped append is answered with an error after which
        it is safe to send the append again.
        """
        ...

    def take_back(self) -> None:
        """Cancels the append, because the node refused an earlier append of the same sender. If this append cannot
        be in the log yet, ``done`` is called now with ``NotMaster``. An append that may be in the log continues as
        usual."""
        ...


@dataclass(frozen=True, slots=True)
class EntryPage:
    """Entries in ascending order of VLSN. ``next_vlsn`` is the VLSN at which the next read starts. ``term`` is the term
    of the VLSN before ``next_vlsn``, or 0 if that term is not known."""

    entries: list[Entry]
    next_vlsn: int
    durable: int
    term: int = 0


@dataclass(frozen=True, slots=True)
class BlockPage:
    """Whole blocks (``vlsn.format.block``), one after another, each padded to a multiple of 8 bytes."""

    data: list[bytes]
    next_vlsn: int
    durable: int


@dataclass(frozen=True, slots=True)
class ProducerAt:
    """A producer's submissions in the log up to VLSN ``durable``. The log remembers every producer with a submission
    after VLSN ``forgotten_to``."""

    place: ProducerPlace
    durable: int
    forgotten_to: int


class Handle(NamedTuple):
    """The name of an open transaction: ``t-<id>-<born>-<term>``.

    ``id`` identifies the transaction's commit in the log. ``born`` is a VLSN that was durable when the transaction
    began. ``term`` is the term of the master that has the transaction's entries.
    """

    id: int
    born: int
    term: int

    def __str__(self) -> str:
        return f"t-{self.id:016x}-{self.born}-{self.term}"

    @classmethod
    def parse(cls, text: str) -> Handle:
        """Parses a handle. Raises ``BadArgument`` for a text that is no handle of a master."""
        match = _HANDLE.match(text)
        numbers = (int(match[1], 16), int(match[2]), int(match[3])) if match is not None else (0, 0, 0)
        if not 0 < numbers[0] <= NUMBER_MAX or max(numbers) > NUMBER_MAX:
            raise BadArgument(
                f"{text[:80]!a} is no transaction: it is t-ID-VLSN-TERM, as POST /v1/transactions answers"
            )
        return cls(*numbers)


HANDLE: Final = "^t-([0-9a-f]{16})-(0|[1-9][0-9]{0,18})-([1-9][0-9]{0,18})$"
"""The pattern of a handle, in the syntax of ECMA 262, too."""
_HANDLE = re.compile(HANDLE[:-1] + r"\Z", re.ASCII)


@dataclass(slots=True, eq=False)
class Puts:
    """The names that a COMMIT sets in the small state (named values in the log), each with its new JSON value; None
    deletes the name. ``expects`` maps some names to the VLSN of the COMMIT that must have set the name last; 0 means
    that the name must not be set yet. If another COMMIT has set one of these names since, nothing is logged."""

    values: Mapping[str, bytes | None]
    expects: Mapping[str, int] = field(default_factory=dict)
    acks: Mapping[str, AckNote] = field(default_factory=dict)
    """The acknowledgements that the COMMIT records, by the uuid of the destination."""
    unlogged: Callable[[], None] = lambda: None
    """Called if the queue drops the append with this COMMIT."""

    def entry(self) -> bytes:
        """Returns the value of the COMMIT entry. Raises ``BadBody`` if the COMMIT would be too large."""
        null = msgspec.Raw(b"null")
        put = {name: msgspec.Raw(value) if value is not None else null for name, value in self.values.items()}
        return CommitEntry(put=put, acks=dict(self.acks)).encode()


class ConsumerAt(msgspec.Struct, frozen=True):
    """A consumer's position, as a node reports it.

    ``next`` is the VLSN that the consumer reads next, and ``term`` is the term of the VLSN before ``next`` (0: not
    known). ``at`` is the VLSN of the COMMIT that set the position, and ``by`` is the name of that change. ``lag_vlsns``
    counts the durable VLSNs from the consumer's next DATA entry on, and ``lag_s`` is that entry's age in seconds. A lag
    is None if this node does not know it.
    """

    name: str
    next: int
    term: int
    at: int
    lag_vlsns: int | None = None
    lag_s: float | None = None
    by: str = ""


class ConsumerChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new position for a consumer. ``at`` is the VLSN of the COMMIT that set the position to be replaced. 0 means
    that the consumer must have no position yet; None replaces any position."""

    next: int
    at: int | None = None
    by: str = ""
    term: int = 0
    """The term of the VLSN before ``next``. The caller sets ``term`` only for a position in another group's log; for
    its own log the node finds the term."""


class SinkAt(msgspec.Struct, frozen=True):
    """A sink's state, as a node reports it. ``at`` is the VLSN of the COMMIT that set the state."""

    name: str
    at: int
    state: SinkState


class SinkChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new state of a sink, which the commit of a part sets. ``at`` is the VLSN of the COMMIT that set the state to be
    replaced, or 0 if the sink must have no state yet."""

    state: SinkState
    at: int


class CommitSets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The consumers' positions and the sinks' states that a commit sets, each by its name."""

    positions: dict[str, ConsumerChange] = {}
    sinks: dict[str, SinkChange] = {}


class Span(msgspec.Struct, frozen=True):
    """Consecutive VLSNs up to ``next`` (exclusive), which take about ``bytes`` bytes in segment files. ``term`` is the
    term of the VLSN before ``next``."""

    next: int
    term: int
    bytes: int


class Spans(msgspec.Struct, frozen=True):
    """Consecutive spans of the log. ``first`` is the log's first VLSN (0 for an empty log) and ``durable`` the durable
    end, as far as the answering node knows."""

    first: int
    durable: int
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class FeedHello:
    """The headers of ``WS /v1/feed``, with which a replica requests a feed from a node. ``node`` and ``incarnation``
    identify the replica; ``to`` and ``to_incarnation`` identify the node that will send the feed."""

    group: str
    node: NodeName
    incarnation: Incarnation
    to: NodeName
    to_incarnation: Incarnation | None
    term: Term
    """The highest term that the replica has stored."""
    process: int
    """A random u64 that each process of a node draws when it starts."""
    levels: Levels = LEVELS


class DestinationChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """A new destination, or changes of an existing one. A field that is None keeps its value; in a new destination it
    gets its default."""

    prefix: str | None = None
    from_: int | str | None = None
    """The first VLSN of a new destination: ``"start"``, ``"end"`` (the default), or a VLSN."""
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
    """16 hex digits that identify this creation of the destination. A repeated request with the same uuid creates no
    second destination."""
