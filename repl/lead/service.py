"""The master's answers to its gateway: appends, transactions and feeds, by the lead of the moment."""

from __future__ import annotations

from contextlib import suppress

from repl.api import Acks, CommitSets, Done, FeedHello, Handle, Puts
from repl.group.member import Member
from repl.lead.append_book import Append
from repl.lead.leading import Leading, lead_of, leading_of
from repl.names import positions, sinks
from vlsn.durability import GroupDurability
from vlsn.errors import BadArgument, NotMaster, WrongGroup, WrongName
from vlsn.format.batch import Batch
from vlsn.format.submission import Submission, Transaction, Values
from vlsn.seams import Channel


class NodeAppends:
    """Appends to the log of the moment's lead."""

    def __init__(self, member: Member) -> None:
        self.member = member

    def submit(
        self,
        submission: Submission,
        acks: Acks,
        done: Done,
        born: int | None = None,
        durability: GroupDurability | None = None,
        sets: CommitSets | None = None,
    ) -> Append:
        """Queues one atomic append. A transaction's COMMIT also sets the names in ``sets``. A producer's that is in the
        queue or the log already is not queued again, and answered when its original meets ``acks``. ``born``: a VLSN
        that was durable before the producer's first. ``durability``: less than the group's setting, None for that.

        ``done`` is called exactly once, never from inside this call. Raises at once, with nothing logged:
        ``QueueFull``, ``NotMaster``, ``InsufficientReplicas``, ``NoSpace``, ``TooLarge``, ``Halted``,
        ``StrongerDurability``, ``WrongVersion`` for less than a sync at level 1; for a producer ``OutOfSequence``,
        ``UnknownProducer``, ``DuplicateForgotten``; for a bad value in ``sets`` ``BadArgument``. ``done`` receives
        ``StaleTerm`` where another commit has replaced a name's value.
        """
        lead = lead_of(self.member)
        if durability is not None:
            lead.admission.check_durability(durability)
        if sets is None:
            return lead.admission.submit(submission, acks, done, born, None, durability)
        assert isinstance(submission, Transaction)
        try:
            puts = _puts_of(lead, sets)
        except BadArgument as error:
            if positions.is_past(
                lead.log, sets.positions
            ):  # of its end: an unseated master misses entries that were read elsewhere
                return lead.admission.refuse(submission, acks, done, error)
            raise
        if puts is not None:
            submission = Transaction(submission.parts, puts.entry(), (submission.producer, submission.sequence))
        return lead.admission.submit(submission, acks, done, born, puts, durability)


class NodeTransactions:
    """Transactions in the memory of the moment's lead, until their commits log them whole."""

    def __init__(self, member: Member) -> None:
        self.member = member

    def begin(self, id: int | None) -> tuple[Handle, int]:
        """Begins one named ``id``, None for any name; returns with it the bytes of a segment that it may take. Raises
        ``NotMaster``, ``QueueFull``, ``BadArgument`` for another one's name, ``WrongVersion`` below the level that has
        them."""
        transactions = lead_of(self.member).transactions
        return transactions.begin(id), transactions.bytes_max

    async def stage(self, handle: Handle, part: Values | Batch, after: int | None, rewinds: int) -> int:
        """Stages more entries, and returns how many there are; ``after``: how many there were, ``rewinds``: how many
        calls were given up. Raises ``TooLarge``, ``QueueFull``, ``BadArgument``, ``TransactionGone``,
        ``TransactionClosed``, ``OutcomeUnknown``."""
        return await lead_of(self.member).transactions.stage(handle, part, after, rewinds)

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
    ) -> Append:
        """Submits all staged entries as one append, as the producer's submission where it has a ``name``. Its COMMIT
        sets the names in ``sets``. Asked again it is answered as the first time. ``after`` and ``rewinds`` as in
        ``stage``. ``done`` and what it raises: as for ``NodeAppends.submit``; ``StaleTerm`` where another commit has
        replaced a value."""
        lead = lead_of(self.member)
        if durability is not None:
            lead.admission.check_durability(durability)
        if sets is not None:
            await positions.confirm_end(lead, sets.positions)
        puts = _puts_of(lead, sets)
        return lead.transactions.commit(
            handle,
            acks,
            done,
            name=name,
            born=born,
            puts=puts,
            durability=durability,
            after=after,
            rewinds=rewinds,
        )

    async def abort(self, handle: Handle) -> None:
        """Forgets what is staged. Raises ``TransactionClosed`` once a commit is under way."""
        await lead_of(self.member).transactions.abort(handle)

    def forget(self, handle: Handle) -> None:
        """Forgets what is staged, unless a commit is under way, or this node leads no more."""
        with suppress(NotMaster):
            lead_of(self.member).transactions.forget(handle)


class NodeFeeds:
    """The feeds that a master sends its replicas."""

    def __init__(self, member: Member) -> None:
        self.member = member

    async def check_feed(self, hello: FeedHello) -> None:
        """Raises the ``FeedRefused`` (or ``NotMaster``, ``Halted``) that refuses it before the upgrade."""
        role = leading_of(self.member)
        if hello.group != self.member.config.group:
            raise WrongGroup(f"this node is of group {self.member.config.group}, not {hello.group}")
        if hello.to != self.member.name:
            raise WrongName(f"this node is {self.member.name}, not {hello.to}")
        if role is None:
            raise NotMaster("this node is not the master: it feeds nobody")
        await role.check_feed(hello)

    async def serve_feed(self, hello: FeedHello, channel: Channel) -> None:
        """Lives the whole life of a feed; returns when it ended, for whatever reason. Closes nothing itself."""
        role = leading_of(self.member)
        if role is not None:
            await role.serve_feed(hello, channel)


def _puts_of(lead: Leading, sets: CommitSets | None) -> Puts | None:
    """Makes the names and values that a transaction's COMMIT sets. Raises ``BadArgument``, ``TooLarge``."""
    if sets is None:
        return None
    return sinks.joined(
        positions.puts_of(lead.log, sets.positions) if sets.positions else None,
        sinks.puts_of(lead.log, sets.sinks) if sets.sinks else None,
    )
