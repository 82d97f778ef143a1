"""A feeder: the master's stream of blocks to one replica, from the replica's syncup until the feed stops.

    1  The replica sends SYNCUP. The feeder finds the matchpoint (the last VLSN up to which both logs are equal) by
       terms, and sends MATCHPOINT with the checksums of the block there.
    2  The replica sends START: the replica's own block is equal, and the replica has rolled back its blocks after the
       matchpoint.
    3  The feeder sends BLOCKS as soon as a block is sealed, even before the master has synced it. It sends HEARTBEAT
       every ``heartbeat_s``, or soon after the DTVLSN (the durable end) has risen.
    4  The feeder passes the replica's ACKs to the master, which counts them. When the master begins a read round
       (``rounds.py``), the feeder first finishes the message that it is sending. Then it sends ROUND, and passes the
       replica's answer to the master.

A feeder exists within one term of a master, and stops at the end of the term. A fault of the feed (a damaged segment, a
replica that sends rubbish, a closed channel) stops only this feed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from typing import Protocol
from zlib import crc32

from msgspec.structs import replace

from feeder.matchpoint import matchpoint
from feeder.source import Mode, Offload, Source
from vlsn.errors import BadBody, ChannelClosed, IntegrityFault, StaleTerm, Trimmed, VlsnLogError
from vlsn.format.block import decode_header
from vlsn.format.checksum import crc
from vlsn.format.feed_messages import (
    RECEIPT,
    UNHURRIED,
    Ack,
    Matchpoint,
    MessageType,
    Position,
    Refuse,
    Start,
    Syncup,
    blocks_message,
    check_syncup,
    decode_ack,
    decode_json,
    decode_round,
    encode,
    heartbeat_message,
    message_type,
    refusal,
)
from vlsn.ids import NULL_VLSN, Term, Vlsn
from vlsn.seams import Buffer, Channel
from vlsn.together import together
from vlsn.write.local_log import LocalLog

SYNCUP_TIMEOUT_S = 30.0


class Messages:
    """The last BLOCKS message of one master's term. Several feeders at the same position send the same message, so its
    blocks are joined only once."""

    def __init__(self) -> None:
        self._span = (NULL_VLSN, NULL_VLSN)
        self._message = b""
        self.dtvlsn = NULL_VLSN
        """The DTVLSN (the durable end) that the last message contains."""
        self.unhurried = (NULL_VLSN, NULL_VLSN)
        """The first and last VLSN (inclusive) of the appends that need no sync on a replica; 0 if there are no such
        appends."""
        self.receipt_to = NULL_VLSN
        """The last VLSN for which an append needs only a replica's receipt; 0 if there is no such append."""

    def blocks(self, position: Position, blocks: Sequence[Buffer], first: Vlsn, last: Vlsn) -> bytes:
        """Joins blocks ``first`` to ``last`` of one log in one term. If the same blocks were joined before, the older
        message is returned with its older DTVLSN. The next message has the newer DTVLSN."""
        if self._span != (first, last):
            if self.unhurried[1]:
                position = replace(position, flags=self._flags(first, last))
            self._message = blocks_message(position, blocks)
            self._span = (first, last)
            self.dtvlsn = Vlsn(position.dtvlsn)
        return self._message

    def _flags(self, first: Vlsn, last: Vlsn) -> int:
        """Returns the flags of blocks ``first`` to ``last``. ``UNHURRIED`` (no sync needed) is set only if every block
        allows it; otherwise the replica syncs."""
        start, end = self.unhurried
        return (UNHURRIED if start <= first and last <= end else 0) | (RECEIPT if self.receipt_to >= first else 0)


def overtaken(errors: BaseExceptionGroup[Trimmed]) -> Trimmed:
    """Returns the ``Trimmed`` error that stopped a feed."""
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, Trimmed)
    return found


class FeederOwner(Protocol):
    """The master, as its feeders use it."""

    messages: Messages

    def acknowledged(self, feeder: Feeder, ack: Ack) -> None: ...

    def switched(self, feeder: Feeder, mode: Mode) -> None:
        """Notes that ``feeder`` now reads from the ring, or from the segments."""
        ...

    def answered(self, feeder: Feeder, number: int) -> None:
        """Notes that the replica of ``feeder`` has answered read round ``number``."""
        ...

    def matched(self, feeder: Feeder, at: Vlsn) -> None:
        """Notes that the replica has everything up to ``at``. Raises ``Trimmed`` if a cleaning is about to remove the
        entries after ``at``."""
        ...

    def past_syncup(self, feeder: Feeder) -> None: ...


class Feeder:
    """One feed of blocks to one replica. ``run`` lasts as long as the feed. While the feed runs, its owner calls
    ``handed_over``, ``synced`` and ``tell_dtvlsn``."""

    def __init__(
        self,
        *,
        replica: str,
        incarnation: int,
        term: Term,
        log: LocalLog,
        channel: Channel,
        owner: FeederOwner,
        offload: Offload,
        heartbeat_s: float,
        listed: bool = True,
    ) -> None:
        """``listed`` is false if the group's members do not include the replica's incarnation yet."""
        self.replica = replica
        self.incarnation = incarnation
        self.term = term
        self.sent = NULL_VLSN
        self.acked = NULL_VLSN
        self.silent_ticks = 0
        """The number of the owner's ticks since the replica's last ACK. A time in seconds would mislead: after this
        process has stalled, the replica's ACKs are still unread in its socket."""
        self.streaming = False
        self.source: Source | None = None
        self._log = log
        self._channel = channel
        self._owner = owner
        self._offload = offload
        self._heartbeat_s = heartbeat_s
        self._listed = listed
        self._waiter: asyncio.Future[None] | None = None
        self._told_dtvlsn = NULL_VLSN
        self._idle = False
        """True while the sending task waits, so that ``handed_over`` may send in the task's place."""
        self._unsent = b""
        self._round = b""
        """The message of a read round that has begun but was not sent; empty if there is no such round."""

    @property
    def mode(self) -> Mode:
        return self.source.mode if self.source is not None else Mode.ARCHIVE

    async def run(self) -> None:
        """Runs the feed. Returns, or raises an error, when the feed has stopped. The caller then closes the channel."""
        try:
            async with asyncio.timeout(SYNCUP_TIMEOUT_S):
                start = await self._syncup()
            self._owner.matched(self, Vlsn(start - 1))
        except VlsnLogError as error:
            await self._refuse(error)
            raise
        self.source = Source(self._log, start, self._offload, lambda mode: self._owner.switched(self, mode))
        self.sent = self.acked = Vlsn(start - 1)
        self.streaming = True
        self._owner.past_syncup(self)
        try:
            await together(receive=self._receive(), send=self._send())
        except* Trimmed as errors:
            await self._refuse(overtaken(errors))
            raise
        finally:
            self.streaming = False
            self.source.close()

    def end(self, error: VlsnLogError) -> None:
        """Sends ``error`` to the replica, unless another message is being sent at the moment. The owner then stops the
        feed's task. A replica that did not receive the error learns the reason at its next syncup."""
        if self._idle:
            self._channel.send_now(encode(refusal(error)))

    def handed_over(self) -> None:
        """Sends the next group of blocks at once, if nothing is being sent, while this log's writer receives the same
        group. If a task sent the group, that would cost a turn of the event loop."""
        source = self.source
        if source is None or not self._idle:
            return
        first = source.next_vlsn
        blocks = source.from_ring()
        if blocks:
            message = self._message(blocks, first)
            if not self._channel.send_now(message):
                self._unsent = message
                self._wake()
            elif source.behind:
                self._wake()

    def synced(self) -> None:
        """Wakes a feed that waits for synced blocks in the segments, because the log has synced another group."""
        if self._idle and self.source is not None and self.source.mode is Mode.ARCHIVE:
            self._wake()

    def tell_dtvlsn(self) -> None:
        """Sends a heartbeat with the DTVLSN, if the replica has not received that DTVLSN and nothing is being sent."""
        if self._idle and self._log.view.dtvlsn > self._told_dtvlsn:
            self._channel.send_now(heartbeat_message(self._position()))

    def begin_round(self, message: bytes) -> None:
        """Sends the message of a read round. The replica answers if it has stored no later term than this feed's term.
        A feed that is still in its syncup sends the message later."""
        if not self._idle or not self._channel.send_now(message):
            self._round = message
            self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            self._idle = False
            waiter.set_result(None)

    # Syncup.

    async def _syncup(self) -> Vlsn:
        syncup = decode_json(await self._channel.receive(), Syncup)
        check_syncup(syncup)
        if syncup.stored_term > self.term:
            raise StaleTerm(f"the replica has stored term {syncup.stored_term}, this feed is of term {self.term}")
        span = self._log.view.range
        if not syncup.last and not self._listed:
            raise Trimmed(
                "the log is empty and the group does not list its incarnation: the replica needs a network restore",
                first=span.first,
            )
        at = matchpoint(span.first, self._log.view.ring.last_vlsn, self._log.view.history.term_runs, syncup)
        if at is None:
            raise Trimmed("the logs have no VLSN in common: the replica needs a network restore", first=span.first)
        await self._channel.send(encode(await self._matchpoint(at)))
        answer = await self._channel.receive()
        if message_type(answer) is MessageType.REFUSE:
            refused = decode_json(answer, Refuse)
            said = f"replica {self.replica} ended syncup: {refused.slug}: {refused.detail}"
            if refused.slug == IntegrityFault.slug:
                raise IntegrityFault(said, vlsn=refused.vlsn)
            raise ChannelClosed(said)
        start = decode_json(answer, Start)
        if start.from_vlsn != at + 1:
            raise BadBody(f"START from VLSN {start.from_vlsn} after a matchpoint of {at}")
        return Vlsn(at + 1)

    async def _matchpoint(self, at: Vlsn) -> Matchpoint:
        if not at:
            return Matchpoint(vlsn=0, feed_term=self.term)
        with closing(Source(self._log, at, self._offload)) as source:
            blocks = source.from_ring(1) or await source.from_archive()
        block = bytes(blocks[0])
        header = decode_header(block)
        if header.last_vlsn != at:
            raise IntegrityFault(
                f"VLSN {at} ends a block at replica {self.replica}, but is inside {header.name} here", vlsn=at
            )
        return Matchpoint(
            vlsn=at,
            feed_term=self.term,
            term=header.term,
            block_first=header.first_vlsn,
            crc32c=crc(block),
            crc32=crc32(block),
        )

    async def _refuse(self, error: VlsnLogError) -> None:
        try:
            await self._channel.send(encode(refusal(error)))
        except VlsnLogError:
            pass  # the replica is gone

    # Streaming.

    async def _send(self) -> None:
        source = self.source
        assert source is not None
        channel = self._channel
        while True:
            if self._round:
                message, self._round = self._round, b""
                await channel.send(message)
            first = source.next_vlsn
            blocks = source.from_ring()
            if not blocks and source.mode is Mode.ARCHIVE and source.next_vlsn <= self._log.view.range.last_sync:
                blocks = await source.from_archive()
            if blocks:
                await channel.send(self._message(blocks, first))
            elif self._round:
                pass  # a read round has begun meanwhile
            elif await self._nothing_for(self._heartbeat_s):
                await channel.send(heartbeat_message(self._position()))
            elif self._unsent:
                message, self._unsent = self._unsent, b""
                await channel.send(message)

    def _message(self, blocks: Sequence[Buffer], first: Vlsn) -> bytes:
        """Makes the next message. ``sent`` is set before the message is sent, because the replica's ACK may arrive
        before the send returns."""
        assert self.source is not None
        self.sent = Vlsn(self.source.next_vlsn - 1)
        messages = self._owner.messages
        message = messages.blocks(self._position(), blocks, first, self.sent)
        self._told_dtvlsn = messages.dtvlsn
        return message

    async def _nothing_for(self, seconds: float) -> bool:
        """Waits until there is something that ``handed_over`` has not sent. Returns True if ``seconds`` passed before
        that."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        self._idle = True
        over = False

        def end() -> None:
            nonlocal over
            over = self._idle
            self._wake()

        timer = loop.call_later(seconds, end)
        try:
            await self._waiter
        finally:
            self._idle = False
            timer.cancel()
        return over

    def _position(self) -> Position:
        self._told_dtvlsn = self._log.view.dtvlsn
        log = self._log
        return Position(log.view.allocated, self._told_dtvlsn, log.seams.clock.wall_us(), self.term)

    async def _receive(self) -> None:
        await self._channel.deliver(self._take)

    def _take(self, message: bytes) -> bool:
        if message_type(message) is MessageType.ROUND:
            self._answered(*decode_round(message))
            return True
        ack = decode_ack(message)
        if ack.term != self.term or ack.received > self.sent:
            raise BadBody(f"ACK of term {ack.term} to VLSN {ack.received}; sent in term {self.term} to {self.sent}")
        self.silent_ticks = 0
        if ack.synced > self.acked:
            self.acked = Vlsn(ack.synced)
        self._owner.acknowledged(self, ack)
        return True

    def _answered(self, term: int, number: int) -> None:
        if term != self.term:
            raise BadBody(f"ROUND {number} of term {term} came back on a feed of term {self.term}")
        self.silent_ticks = 0
        self._owner.answered(self, number)
