"""The replica's side of a feed. First comes the syncup; then blocks are written to the log and acknowledged.

    1  Everything handed to the log is written and synced. The replica sends SYNCUP.
    2  The master sends MATCHPOINT. The replica compares the master's block there with its own.
    3  The replica stores the feed's term, synced, and rolls back its blocks after the matchpoint.
    4  The replica sends START, and an ACK for the blocks that it has already.
    5  Each BLOCKS message is verified as a whole, then handed to the log. The replica sends one cumulative ACK for each
       synced group. The replica sends a ROUND (the master's question whether it still leads) back while the feed's term
       is the stored term.
    6  Blocks that raise the group's level wait until that level is stored and synced in the node file.

The term of a feed is stored after the blocks are compared, and before any write, rollback or acknowledgement for that
feed. The comparison only reads. A stored term never falls, and a stored term that is too high shuts out the true
master. So a peer with a different log must not raise the stored term.

The bytes of an incomplete message also show that the master is alive (``tick``).

The replica's DTVLSN (durable end) follows the master's DTVLSN, but never exceeds the last VLSN verified on this feed.
The replica reads no more messages while more than 16 MiB are not synced. The replica ends a feed that is silent for
``SILENCE_S``; its owner connects again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from replica.level import store_level
from replica.matchpoint_check import compare, describe
from vlsn.errors import BadBody, ChannelClosed, Damaged, StaleTerm, VlsnLogError
from vlsn.format.block_run import BlockRun
from vlsn.format.feed_messages import (
    RECEIPT,
    UNHURRIED,
    Ack,
    Matchpoint,
    MessageType,
    Position,
    Refuse,
    Start,
    ack_message,
    decode_json,
    decode_position,
    decode_round,
    encode,
    message_type,
    refusal,
    round_message,
    split_blocks,
)
from vlsn.format.segment import segment_name
from vlsn.ids import NULL_VLSN, Term, Vlsn, lsn_file, lsn_offset
from vlsn.limits import UNSYNCED_BYTES_MAX
from vlsn.seams import Channel
from vlsn.segments.reader import ReadRun
from vlsn.together import together
from vlsn.write.local_log import LocalLog

SILENCE_S = 5.0
LOOKS = 4
"""The number of consecutive checks after which a silent master is given up. Checks are counted because a clock would
mislead: after this process has stalled, the master's messages are still unread in the socket."""
SYNCUP_TIMEOUT_S = 30.0
Offload = Callable[[Callable[[], ReadRun]], Awaitable[ReadRun]]


class FeedRejected(VlsnLogError):
    """The master refused this replica in syncup. ``reason`` is the slug of the refusal."""

    retry_safe = True

    def __init__(self, reason: str, detail: str, vlsn: int = 0) -> None:
        super().__init__(detail)
        self.reason = reason
        self.vlsn = vlsn


class ReplicaFeed:
    """One connection to a master. ``run`` lasts as long as the connection. ``synced`` is called after this node's log
    has synced a group of blocks."""

    def __init__(
        self,
        *,
        log: LocalLog,
        channel: Channel,
        store_term: Callable[[Term], Awaitable[None]],
        roll_back: Callable[[Vlsn], Awaitable[None]],
        drained: Callable[[], Awaitable[None]],
        offload: Offload,
        on_position: Callable[[Position], None],
        on_progress: Callable[[], None],
        unsynced_bytes_max: int = UNSYNCED_BYTES_MAX,
    ) -> None:
        self.term = Term(0)
        self.verified = self.matchpoint = NULL_VLSN
        self.rolled_back = 0
        """The number of VLSNs that this log rolled back during this feed's syncup."""
        self._last_term = 0
        self.streaming = False
        self.position: Position | None = None
        self.heard_s = log.seams.clock.monotonic_s()
        self._log = log
        self._channel = channel
        self._store_term = store_term
        self._roll_back = roll_back
        self._drained = drained
        """Waits until everything handed to the log is synced, and until the rollback of an earlier feed has finished.
        """
        self._offload = offload
        self._on_position = on_position
        self._on_progress = on_progress
        self._came = 0
        """The number of bytes received until the last tick. ``_whole`` is true if a complete message has been received
        since the last tick."""
        self._whole = False
        self._silent_looks = 0
        self._unsynced = 0
        self._unsynced_max = unsynced_bytes_max
        self._room: asyncio.Future[None] | None = None
        self._ack_due: asyncio.Future[None] | None = None
        self._round = 0
        """The number of a read round whose answer could not be sent at once; 0 if there is no such round."""
        self._failed: VlsnLogError | None = None
        self._tells_written = False
        """True once the master has said that some append waits for less than a sync. In that case ACKs also report the
        VLSNs that are written but not synced."""
        self._held: tuple[Position, BlockRun] | None = None
        """Blocks that raise the group's level (the version of its formats). Blocks with a new level are handed to the
        log only after the node file has stored the level."""

    async def run(self) -> None:
        """Runs the feed. Returns, or raises an error, when the feed has stopped. ``IntegrityFault``,
        ``RollbackProhibited`` and ``FeedRejected`` need a person. After any other error the owner tries again."""
        async with asyncio.timeout(SYNCUP_TIMEOUT_S):
            await self._syncup()
        self.streaming = True
        try:
            await together(receive=self._receive(), acknowledge=self._acknowledge())
        finally:
            self.streaming = False

    def synced(self) -> None:
        """Sends an ACK for the group of blocks that this log has synced, at once if possible."""
        good = self.streaming and self._failed is None and self._log.node_file.record.term == self.term
        if good and self._channel.send_now(self._ack()):
            return
        if self._ack_due is not None:
            _set(self._ack_due)

    def written(self) -> None:
        """Sends an ACK for a group that this log has written but not synced, if the master counts such ACKs."""
        if self._tells_written:
            self.synced()

    def tick(self) -> None:
        """Counts the received bytes of a message; it is called a few times a second. A large message, or one on a slow
        link, may take longer than an election timeout. Meanwhile the received bytes show that the master is alive, and
        an ACK shows that this replica is alive."""
        came, before = self._channel.received_bytes(), self._came
        self._came = came
        if not self._whole and came > before and self.streaming:
            self._heard()
            self._on_progress()
            self.synced()
        self._whole = False

    # Syncup.

    async def _syncup(self) -> None:
        log = self._log
        await self._drained()
        stored = Term(log.node_file.record.term)
        await self._channel.send(encode(describe(log.view.range, stored, log.view.history.term_runs)))
        answer = await self._channel.receive()
        if message_type(answer) is MessageType.REFUSE:
            raise _rejected(decode_json(answer, Refuse))
        theirs = decode_json(answer, Matchpoint)
        if theirs.feed_term < stored:
            raise StaleTerm(f"a feed of term {theirs.feed_term}; this node has stored term {stored}")
        try:
            await self._compare(theirs)
            await self._store_term(Term(theirs.feed_term))
            self.term = Term(theirs.feed_term)
            self._check_term()
            self.matchpoint = Vlsn(theirs.vlsn)
            if theirs.vlsn < log.view.range.last:
                self.rolled_back = log.view.range.last - theirs.vlsn
                await self._roll_back(Vlsn(theirs.vlsn))
        except VlsnLogError as error:
            await self._channel.send(encode(refusal(error)))
            raise
        self.verified, self._last_term = Vlsn(theirs.vlsn), theirs.term
        await self._channel.send(encode(Start(theirs.vlsn + 1)))
        self._check_term()
        await self._channel.send(ack_message(Ack(self.term, theirs.vlsn, theirs.vlsn)))

    def _check_term(self) -> None:
        """Raises ``StaleTerm`` unless the feed's term is, at this moment, the term stored on this node."""
        stored = self._log.node_file.record.term
        if stored != self.term:
            raise StaleTerm(f"this node has stored term {stored}, the feed is of {self.term}")

    async def _compare(self, theirs: Matchpoint) -> None:
        span = self._log.view.range
        if theirs.feed_term < max(theirs.term, 1):
            raise BadBody(f"a feed of term {theirs.feed_term} with a matchpoint of term {theirs.term}")
        if theirs.vlsn > span.last or (theirs.vlsn and theirs.vlsn < span.first):
            raise BadBody(f"the matchpoint is {theirs.vlsn}, this log holds VLSNs {span.first} to {span.last}")
        if not theirs.vlsn and span.last:
            raise BadBody(f"no matchpoint, but this log holds VLSNs {span.first} to {span.last}")
        if not theirs.vlsn:
            return
        mapping = self._log.view.index.at_or_before(Vlsn(theirs.vlsn))
        assert mapping is not None
        reader, start = self._log.view.reader(), mapping[1]

        def read() -> ReadRun:
            run = reader.blocks(theirs.vlsn, start=start, upto_vlsn=span.last, bytes_max=1)
            if not run.data:
                said = f"this node's block at VLSN {theirs.vlsn} cannot be read"
                raise Damaged(said, file=segment_name(lsn_file(start)), offset=lsn_offset(start), vlsn=theirs.vlsn)
            return run

        try:
            run = await self._offload(read)
        finally:
            reader.close()
        compare(theirs, run.data[0])

    # Streaming.

    async def _receive(self) -> None:
        while True:
            await self._channel.deliver(self._take)
            if self._held is not None:
                (position, run), self._held = self._held, None
                await store_level(self._log, run.level)
                self._keep(position, run)
            await self._wait_for_room()

    def _take(self, message: bytes) -> bool:
        """Handles one message. Returns whether there is room for another message."""
        log = self._log
        self._heard()
        self._whole = True
        kind = message_type(message)
        if kind is MessageType.REFUSE:
            raise _rejected(decode_json(message, Refuse))
        if kind is MessageType.ROUND:
            self._answer(*decode_round(message))
            return True
        if kind is not MessageType.BLOCKS and kind is not MessageType.HEARTBEAT:
            raise BadBody(f"a {kind.name} message in the stream")
        position = decode_position(message)
        if position.term != self.term:
            raise StaleTerm(f"a message of term {position.term} on a feed of term {self.term}")
        self.position = position
        if self._failed is not None:
            raise self._failed  # no later block may follow the refused blocks
        if kind is MessageType.BLOCKS:
            run = split_blocks(message, expected_first=self.verified + 1, term_min=self._last_term, term_max=self.term)
            if run.level > log.node_file.record.level:
                self._held = position, run
                return False
            self._keep(position, run)
        else:
            self.synced()
            self._moved(position)
        return self._unsynced <= self._unsynced_max

    def _keep(self, position: Position, run: BlockRun) -> None:
        self._unsynced += run.bytes
        flags = position.flags
        self._log.append_blocks(run, lambda error: self._kept(run.bytes, error), sync=not flags & UNHURRIED)
        self.verified, self._last_term = Vlsn(run.lasts[-1]), run.terms[-1]
        if flags:
            self._tells_written = True
            if flags & RECEIPT:
                self.synced()
        self._moved(position)

    def _moved(self, position: Position) -> None:
        self._log.view.raise_dtvlsn(Vlsn(min(position.dtvlsn, self.verified)))
        self._on_position(position)

    def _heard(self) -> None:
        self.heard_s = self._log.seams.clock.monotonic_s()
        self._silent_looks = 0

    def _answer(self, term: int, number: int) -> None:
        """Answers a read round, if the feed's term is still the term stored on this node."""
        if term != self.term:
            raise StaleTerm(f"a round of term {term} on a feed of term {self.term}")
        self._check_term()
        if not self._channel.send_now(round_message(term, number)):
            self._round = number
            if self._ack_due is not None:
                _set(self._ack_due)

    def _kept(self, size: int, error: VlsnLogError | None) -> None:
        self._unsynced -= size
        if error is not None:
            self._failed = error
        room = self._room
        if room is not None and not room.done():
            room.set_result(None)
        if error is not None:
            self.synced()

    async def _wait_for_room(self) -> None:
        while self._unsynced > self._unsynced_max and self._failed is None:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    async def _acknowledge(self) -> None:
        """Sends the ACK that could not be sent earlier, and stops a feed whose master is silent."""
        loop = asyncio.get_running_loop()
        while True:
            due = self._ack_due = loop.create_future()
            timer = loop.call_later(SILENCE_S / LOOKS, self._look, due)
            await due
            timer.cancel()
            if self._failed is not None:
                raise self._failed
            if self._silent_looks > LOOKS:
                raise ChannelClosed(f"the master has sent nothing for {SILENCE_S} s")
            self._check_term()
            await self._channel.send(self._ack())
            while self._round:
                number, self._round = self._round, 0
                await self._channel.send(round_message(self.term, number))

    def _look(self, due: asyncio.Future[None]) -> None:
        if self._unsynced <= self._unsynced_max:  # otherwise the silence is this replica's fault: it does not read
            self._silent_looks += 1
        _set(due)

    def _ack(self) -> bytes:
        span = self._log.view.index.range
        return ack_message(Ack(self.term, self.verified, span.last_sync, span.last if self._tells_written else None))


def _set(due: asyncio.Future[None]) -> None:
    if not due.done():
        due.set_result(None)


def _rejected(refuse: Refuse) -> FeedRejected:
    return FeedRejected(refuse.slug, refuse.detail, refuse.vlsn)
