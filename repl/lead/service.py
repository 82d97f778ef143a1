"""The master's calls for its gateway: appends, transactions and feeds, in the current term."""

from __future__ import annotations

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
    """Appends to the log, if this node is the master."""

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
        """Queues one atomic append. A transaction's COMMIT also sets the names in ``sets``. A producer's submission
        that is in the queue or the log already is not queued again; it is answered when its original meets ``acks``.
        ``born`` is a VLSN that was durable before the producer's first submission. ``durability`` may be less than the
        group's setting; None means that setting.

        ``done`` is called exactly once, never during this call. Raises before anything is logged: ``QueueFull``,
        ``NotMaster``, ``InsufficientReplicas``, ``NoSpace``, ``TooLarge``, ``Halted``, ``StrongerDurability``,
        ``WrongVersion`` for less than a sync at level 1; for a producer ``OutOfSequence``, ``UnknownProducer``,
        ``DuplicateForgotten``; for a bad value in ``sets`` ``BadArgument``. ``done`` receives ``StaleTerm`` if another
        commit has replaced a name's value.
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
            # a deposed master may be missing entries that were read elsewhere
            if positions.is_past(lead.log, sets.positions):
                return lead.admission.refuse(submission, acks, done, error)
            raise
        if puts is not None:
            submission = Transaction(submission.parts, puts.entry(), (submission.producer, submission.sequence))
        return lead.admission.submit(submission, acks, done, born, puts, durability)


class NodeTransactions:
    """Transactions in the memory of the current master, until their commits log them whole."""

    def __init__(self, member: Member) -> None:
        self.member = member

    def begin(self, id: int | None) -> tuple[Handle, int]:
        """Begins a transaction with the name ``id``, or any name for None. Also returns how many bytes of a segment the
        transaction may take. Raises ``NotMaster``, ``QueueFull``, ``BadArgument`` if the name belongs to another
        transaction, or ``WrongVersion`` if the group's level is too low."""
        transactions = lead_of(self.member).transactions
        return transactions.begin(id), transactions.bytes_max

    async def stage(self, handle: Handle, part: Values | Batch, after: int | None, rewinds: int) -> int:
        """Stages more entries, and returns the new number of entries. ``after`` is the number before this call,
        ``rewinds`` the number of abandoned calls. Raises ``TooLarge``, ``QueueFull``, ``BadArgument``,
        ``TransactionGone``, ``TransactionClosed``, ``OutcomeUnknown``."""
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
        """Submits all staged entries as one append, as the producer's submission if ``name`` is set. The COMMIT sets
        the names in ``sets``. A repeated call gets the same answer. ``after`` and ``rewinds`` are as in ``stage``;
        ``done`` and the errors are as for ``NodeAppends.submit``. Raises ``StaleTerm`` if another commit has replaced a
        value."""
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
        """Forgets the staged entries. Raises ``TransactionClosed`` once a commit is under way."""
        await lead_of(self.member).transactions.abort(handle)


class NodeFeeds:
    """The feeds that a master sends to its replicas."""

    def __init__(self, member: Member) -> None:
        self.member = member

    async def check_feed(self, hello: FeedHello) -> None:
        """Raises the ``FeedRefused``, ``NotMaster`` or ``Halted`` that refuses a feed before the upgrade."""
        role = leading_of(self.member)
        if hello.group != self.member.config.group:
            raise WrongGroup(f"this node is of group {self.member.config.group}, not {hello.group}")
        if hello.to != self.member.name:
            raise WrongName(f"this node is {self.member.name}, not {hello.to}")
        if role is None:
            raise NotMaster("this node is not the master: it has no feeds")
        await role.check_feed(hello)

    async def serve_feed(self, hello: FeedHello, channel: Channel) -> None:
        """Runs a feed, and returns when it has stopped for any reason. Does not close the channel."""
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
