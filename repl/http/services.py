"""The services that the gateway asks of its node: a protocol for each kind of call, and ``Services``.

The routes check what came from outside and turn it into these calls.  The node answers in the types of ``repl.api``,
or raises one of ``vlsn.errors``, whose slug becomes the answer's type.  Every call is made on the event loop's thread,
and none blocks it.  A node listens before its log is open: until then, what needs the log raises ``NotMaster``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from repl.api import (
    Acks,
    BlockPage,
    CommitSets,
    ConsumerAt,
    ConsumerChange,
    DestinationChange,
    Done,
    EntryPage,
    FeedHello,
    Handle,
    Pending,
    ProducerAt,
    SinkAt,
    Spans,
)
from repl.http.message_batch import MessageColumns
from vlsn.durability import GroupDurability
from vlsn.format.batch import Batch
from vlsn.format.block import Entry
from vlsn.format.key_filter import KeyFilter
from vlsn.format.submission import Submission, Values
from vlsn.format.vlsn_set import Vlsns, VlsnSet
from vlsn.levels import Levels
from vlsn.seams import Channel


class Mastership(Protocol):
    """The calls that only the master answers."""

    def is_master(self) -> bool: ...

    def master_url(self) -> str | None:
        """Returns where the master is; ``None`` while none is known."""
        ...


class Confirming(Protocol):
    """Answers that are as new as everything acknowledged before the call."""

    async def confirm(self, timeout_s: float) -> int:
        """Confirms a VLSN at or past everything acknowledged as durable before the call; reads here show it. Raises
        ``NotMaster`` when no majority confirms a master in time, ``Lagging`` when this node is not that far."""
        ...


class Appends(Mastership, Protocol):
    def submit(
        self,
        submission: Submission,
        acks: Acks,
        done: Done,
        born: int | None = None,
        durability: GroupDurability | None = None,
        sets: CommitSets | None = None,
    ) -> Pending:
        """Queues one atomic append, a transaction with what its COMMIT ``sets``. A producer's that is in the queue or
        the log already is not queued again, and answered when its original meets ``acks``. ``born``: a VLSN that was
        durable before the producer's first. ``durability``: less than the group's setting, None for that.

        ``done`` is called exactly once, never from inside this call.  Raises at once, with nothing logged:
        ``QueueFull``, ``NotMaster``, ``InsufficientReplicas``, ``NoSpace``, ``TooLarge``, ``Halted``,
        ``StrongerDurability``, ``WrongVersion`` for less than a sync at level 1; of a producer ``OutOfSequence``,
        ``UnknownProducer``, ``DuplicateForgotten``; for what it sets ``BadArgument``. What another one has replaced
        ``done`` is told: ``StaleTerm``.
        """
        ...


class Transactions(Mastership, Protocol):
    """Transactions of the master's memory, until their commits log them whole."""

    def begin(self, id: int | None) -> tuple[Handle, int]:
        """Begins one named ``id``, None for any name; returns with it the bytes of a segment that it may take. Raises
        ``NotMaster``, ``QueueFull``, ``BadArgument`` for another one's name, ``WrongVersion`` below the level that has
        them."""
        ...

    async def stage(self, handle: Handle, part: Values | Batch, after: int | None, rewinds: int) -> int:
        """Stages more entries, and returns how many there are; ``after``: how many there were, ``rewinds``: how many
        calls were given up. Raises ``TooLarge``, ``QueueFull``, ``BadArgument``, ``TransactionGone``,
        ``TransactionClosed``, ``OutcomeUnknown``."""
        ...

    async def commit(
        self,
        handle: Handle,
        acks: Acks,
        done: Done,
        *,
        name: tuple[int, int] | None,
        born: int | None,
        sets: CommitSets | None,
        durability: GroupDurability | None,
        after: int | None,
        rewinds: int,
    ) -> Pending:
        """Submits all that is staged as one append, the producer's submission where it has a ``name``, with what its
        COMMIT ``sets``. Asked again it is answered as the first time. ``after`` and ``rewinds`` as in ``stage``.
        ``done`` and what it raises: as for ``Appends.submit``; ``StaleTerm`` for what another one has replaced."""
        ...

    async def abort(self, handle: Handle) -> None:
        """Forgets what is staged. Raises ``TransactionClosed`` once a commit is under way."""
        ...


class Reads(Confirming, Protocol):
    """Durable entries, and what a reader asks beside them."""

    def end(self) -> int:
        """Returns the VLSN after the durable end, as far as this node knows it."""
        ...

    def term_before(self, vlsn: int) -> int:
        """Returns the term of the entry before ``vlsn``; 0 where it is not there, or not durable."""
        ...

    async def until(self, vlsn: int) -> None:
        """Returns once ``vlsn`` is durable here, for whoever makes a page of it: soon, and not all in one turn of the
        loop.  Raises ``NotMaster`` when the log is closed meanwhile."""
        ...

    async def read(
        self,
        from_vlsn: int | None,
        *,
        limit: int,
        bytes_max: int,
        all_kinds: bool,
        keys: KeyFilter | None = None,
    ) -> EntryPage:
        """Reads visible entries from ``from_vlsn`` (``None``: the first there is) on, of these ``keys`` (``None``:
        all).

        At most ``limit`` entries and about ``bytes_max`` bytes, never less than one entry when one is
        there.  Entries above the durable end are never in it.
        ``next_vlsn`` moves past what was skipped (TERM, GROUP …).  With ``keys`` a page may be empty though
        ``next_vlsn`` is not past the durable end: so much was looked at for nothing.  Raises ``Trimmed``,
        ``Damaged``, ``Halted``.
        """
        ...

    async def read_blocks(self, from_vlsn: int | None, *, bytes_max: int) -> BlockPage:
        """Reads whole durable blocks from the one that holds ``from_vlsn`` on; raises as ``read`` does."""
        ...

    async def find_time(self, time_us: int) -> int:
        """Finds the first durable VLSN at which the highest block time so far is at or past ``time_us``, ``end`` where
        none is. Raises ``Damaged``, ``Lagging`` where the search takes long: asked again, it goes on."""
        ...

    async def spans(
        self, from_vlsn: int | None, to_vlsn: int, *, bytes_each: int, entries_each: int, limit: int
    ) -> Spans:
        """Cuts what is durable of a range into spans (``repl.read.spans``). Raises ``Trimmed``, ``Damaged``."""
        ...

    async def read_one(self, vlsn: int) -> Entry:
        """Raises ``NotYet``, ``NotData``, ``Trimmed``, ``Damaged``."""
        ...

    def check_place(self, vlsn: int, term: int) -> None:
        """Raises ``NotInLog`` when the log cannot hold, at ``vlsn``, the entry of ``term`` that a reader has seen."""
        ...

    async def producer(self, producer: int, timeout_s: float) -> ProducerAt:
        """Tells how far that producer has come in what is durable, confirmed and raising as ``confirm``."""
        ...


class Consumers(Mastership, Confirming, Protocol):
    """Named positions: told as far as they are durable here, changed by the master."""

    async def consumers(self) -> list[ConsumerAt]:
        """Lists all, by name. Raises ``ProducersMissing`` while this node has lost what it knew of them."""
        ...

    async def consumer(self, name: str) -> ConsumerAt:
        """Raises ``BadArgument``, ``NotFound``, and as ``consumers``."""
        ...

    async def set_consumer(self, name: str, change: ConsumerChange, timeout_s: float) -> ConsumerAt:
        """Sets a position, durable on return. Raises ``StaleTerm`` where another one has come since the one that it
        starts from, ``BadArgument``, ``Trimmed``, ``TooLarge``, ``WrongVersion`` below the level that has positions,
        nothing logged; and what an append meets."""
        ...

    async def delete_consumer(self, name: str, at: int | None, timeout_s: float) -> None:
        """Deletes a position, durable on return. Raises ``NotFound``, and as ``set_consumer``."""
        ...


class Sinks(Mastership, Confirming, Protocol):
    """How far writers of numbered batches have come: told as far as it is durable here, set by their commits."""

    def sinks(self) -> list[SinkAt]:
        """Lists all, by name. Raises ``ProducersMissing`` while this node has lost what it knew of them."""
        ...

    def sink(self, name: str) -> SinkAt:
        """Raises ``BadArgument``, ``NotFound``, and as ``sinks``."""
        ...

    async def delete_sink(self, name: str, at: int | None, timeout_s: float) -> None:
        """Forgets a state, durable on return. Raises ``NotFound``, ``StaleTerm``, and what an append meets."""
        ...


class Messages(Protocol):
    """The messages of one answer: their columns, and by VLSN how often those were delivered that are not for the first
    time."""

    @property
    def columns(self) -> MessageColumns: ...

    @property
    def attempts(self) -> Mapping[int, int]: ...

    @property
    def uuid(self) -> str:
        """The destination that they are of."""
        ...


class Room(Protocol):
    """Room in memory for messages that are handed out."""

    async def wait(self, until: float) -> bool:
        """Waits for some, to ``until`` of the loop's time at most, and says whether there is."""
        ...

    def take(self, answer: int, size: int) -> None:
        """Takes it for an answer of so many bytes. Whoever asked for the messages gives it back."""
        ...


class DestinationWorker(Protocol):
    """One worker of a destination that stays connected."""

    @property
    def uuid(self) -> str: ...

    async def take(self, most: int, wait_s: float, room: Room) -> tuple[Messages, int]:
        """Hands messages out, and returns the answer's number, 0 for none; waits so long for the first. They may be
        sent after ``confirm``. Raises as ``Destinations.messages``."""
        ...

    async def confirm(self) -> None:
        """Returns once a majority has confirmed the lead. Raises ``NotMaster``, ``NotFound``."""
        ...

    def recall(self, answers: Collection[int]) -> None:
        """Takes answers back that were not sent, as if they had not been out."""
        ...

    def unread(self, vlsns: Vlsns) -> None:
        """Takes messages back that nobody has looked at."""
        ...

    def ack(self, vlsns: VlsnSet) -> asyncio.Future[None]:
        """Acknowledges; done once that is durable. Raises as ``Destinations.ack``."""
        ...


class Destinations(Mastership, Protocol):
    """Destinations, at the master.  Every call raises ``NotMaster``, ``WrongVersion`` below the level that has them,
    ``ProducersMissing`` while this node has lost what it knew of them, and for a name ``BadArgument``, ``NotFound``."""

    async def destinations(self) -> list[dict[str, Any]]: ...

    async def destination(self, name: str) -> dict[str, Any]: ...

    async def set_destination(
        self, name: str, change: DestinationChange, timeout_s: float
    ) -> tuple[dict[str, Any], bool]:
        """Makes it, or changes it; durable on return. Says whether it was made. Raises ``StaleTerm``, ``TooLarge``,
        ``Trimmed``, and what an append meets."""
        ...

    async def drop_destination(self, name: str, timeout_s: float) -> None: ...

    async def order(self, name: str, order: str, to: int | str | None, timeout_s: float) -> dict[str, Any]:
        """Obeys ``pause``, ``resume``, ``move`` or ``retry-dead``; durable on return."""
        ...

    async def worker(self, name: str) -> DestinationWorker: ...

    async def messages(self, name: str, most: int, wait_s: float, room: Room) -> Messages:
        """Takes messages, each for one asker. Raises ``QueueFull``, ``Damaged``."""
        ...

    async def peek(self, name: str, most: int) -> Messages:
        """Shows the next messages that are not acknowledged, and takes none."""
        ...

    async def ack(self, name: str, vlsns: Vlsns, uuid: str, wait_s: float) -> None:
        """Acknowledges, durable on return; with a ``wait_s`` of 0 before that. ``uuid``: the one destination of that
        name that is meant, "" for any. Raises ``OutcomeUnknown``, ``QueueFull``, ``BadArgument``."""
        ...

    async def nack(self, name: str, vlsns: Vlsns, uuid: str, reason: str) -> None: ...


class Files(Protocol):
    """The log's files as they are."""

    @property
    def name(self) -> str: ...

    @property
    def group(self) -> str: ...

    def segments(self) -> list[dict[str, Any]]:
        """Lists the files: ``number``, ``file``, ``end`` (bytes up to the synced length), ``sealed``."""
        ...

    def segment_end(self, number: int) -> int:
        """Returns the synced bytes of that segment. Raises ``NotFound``, or ``Trimmed`` once it was cleaned away."""
        ...

    async def read_segment(self, number: int, start: int, end: int) -> bytes:
        """Reads bytes ``start`` to ``end`` (exclusive, at most ``segment_end``) of the file as it is."""
        ...


class Speaker(Protocol):
    """A node, as far as who feeds from it must know."""

    @property
    def name(self) -> str: ...

    @property
    def levels(self) -> Levels: ...


class Feeds(Speaker, Protocol):
    """The feeds that a master sends its replicas."""

    async def check_feed(self, hello: FeedHello) -> None:
        """Raises the ``FeedRefused`` (or ``NotMaster``, ``Halted``) that refuses it before the upgrade."""
        ...

    async def serve_feed(self, hello: FeedHello, channel: Channel) -> None:
        """Lives the whole life of a feed; returns when it ended, for whatever reason. Closes nothing itself."""
        ...


class Peers(Protocol):
    """The questions of the other members, as JSON."""

    async def hello(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers ``POST /v1/peer/hello``: founding and discovery. Raises ``FeedRefused``, ``BadBody``."""
        ...

    async def vote(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers ``POST /v1/peer/vote``; what the reply says is synced. Raises ``FeedRefused``, ``BadBody``,
        ``NotMaster`` while the log is not open."""
        ...

    async def stand(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers ``POST /v1/peer/stand``: the master asks this node to take over. Raises as ``vote``,
        ``StaleTerm``."""
        ...

    async def read_index(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers ``POST /v1/peer/read_index``. Raises ``NotMaster``, ``FeedRefused``, ``BadBody``."""
        ...

    async def begun(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers ``POST /v1/peer/cdc``: a consumer begins on the asker. Raises ``NotMaster``, ``FeedRefused``,
        ``BadBody``, and as an append does."""
        ...


class Repairs(Protocol):
    """The help for a member that restores or mends its log."""

    async def offer(self, body: dict[str, Any]) -> bytes:
        """Answers ``POST /v1/peer/restore`` (``vlsn.repair.restore_messages``) with JSON. Raises as
        ``repl.repair.providing`` says."""
        ...

    async def range(self, session: str, number: int, start: int, end: int, have: int) -> tuple[bytes, int]:
        """Reads bytes of a segment for a restoring peer, and the log's generation. Raises ``NotFound`` when the session
        is over, ``NotYet``, ``Trimmed``."""
        ...

    async def block(self, asked: Mapping[str, str], term: int, first: int) -> bytes:
        """Answers ``GET /v1/peer/block``: a block by its name, for a member that mends its own. ``asked`` holds the
        names of group, sender and receiver. Raises ``FeedRefused``, ``NotFound``, ``Damaged``."""
        ...

    async def messages(self, asked: Mapping[str, str], uuid: str, since: int, first: int, last: int) -> bytes:
        """Answers ``GET /v1/peer/messages``: messages of a destination from ``first`` on, as records of a page
        (``repl.paging.filling``); ``since`` is the VLSN that has set where it begins. Raises ``FeedRefused``,
        ``NotFound``, ``Damaged`` where they cannot be read for now."""
        ...

    async def copy(self, asked: Mapping[str, str], vlsn: int) -> dict[str, Any]:
        """Answers ``GET /v1/peer/copy``: which block holds ``vlsn``, and its SHA-256. Raises ``FeedRefused``,
        ``NotFound``, ``Damaged``."""
        ...


class Administration(Mastership, Protocol):
    """The orders of a person."""

    async def checkpoint(self) -> dict[str, Any]: ...

    async def rotate(self) -> dict[str, Any]: ...

    async def clean(self, *, dry_run: bool) -> dict[str, Any]:
        """Runs a pass of cleaning, or says what one would do."""
        ...

    async def restore(self) -> dict[str, Any]:
        """Gives the log up and restores it from a peer.  Raises ``NotAllowed`` while this node leads or restores,
        ``CopyNeeded`` while too few of the other members are known to be whole."""
        ...

    async def transfer(self, to: str | None) -> dict[str, Any]:
        """Moves mastership to the member ``to``, or to the one that is furthest.  Raises ``NotMaster``,
        ``BadArgument``, ``Unreachable``."""
        ...

    def group_document(self) -> dict[str, Any]:
        """Answers ``GET /v1/group``: the members as this node's log lists them. Raises ``NotMaster`` while it is not
        open."""
        ...

    async def change_group(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers ``POST /v1/admin/group`` (``repl.group.membership.Change``); durable on return. Raises as
        ``Changes.change``."""
        ...

    async def change_settings(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers ``POST /v1/admin/group/settings``; durable on return. Raises as ``change_settings`` and
        ``raise_level`` do."""
        ...


class Monitoring(Protocol):
    """The node's word about itself."""

    def addresses(self) -> Collection[str]:
        """Lists the names that this node may be called by: hosts, with a port or without, and URLs."""
        ...

    def status(self, long: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Returns the object of ``GET /v1/status``, as it is now; ``long`` is what ``long_status`` gave of late."""
        ...

    def long_status(self) -> dict[str, Any]:
        """Returns the fields of a status that grow with the group's names."""
        ...

    def check_founding(self, named: str) -> None:
        """Raises ``WrongGroup`` where this node's log is known to have another name than ``named``."""
        ...

    def events_since(self, number: int, limit: int) -> dict[str, Any]:
        """Returns the object of ``GET /v1/events`` (``repl.events``)."""
        ...

    def readiness(self) -> list[str]:
        """Reasons why this node is not ready to serve durable reads; none when it is."""
        ...

    def metrics_text(self) -> Generator[int, None, bytes]:
        """Makes Prometheus' text format, in steps that tell what each costs (``repl.http.slices``)."""
        ...


class Cdc(Protocol):
    """The CDC consumers of this node.  Raise ``NotFound`` for a name that its settings lack; orders ``NotMaster`` while
    it does not run here."""

    @property
    def name(self) -> str:
        """The name of this node."""
        ...

    def consumers(self) -> list[dict[str, Any]]: ...

    def consumer(self, name: str) -> dict[str, Any]: ...

    async def pause(self, name: str) -> dict[str, Any]: ...

    async def resume(self, name: str) -> dict[str, Any]: ...

    async def reset(self, name: str, to: int | str) -> dict[str, Any]:
        """Raises ``BadArgument``, ``Trimmed``; so do the next two."""
        ...

    async def skip(self, name: str, to: int) -> dict[str, Any]: ...

    async def resend(self, name: str, first: int, last: int) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Services:
    """All that one node answers."""

    appends: Appends
    transactions: Transactions
    reads: Reads
    consumers: Consumers
    sinks: Sinks
    destinations: Destinations
    cdc: Cdc
    files: Files
    feeds: Feeds
    peers: Peers
    repairs: Repairs
    administration: Administration
    monitoring: Monitoring
