"""Errors, under one root.

One class for each thing that a caller would do differently.  Local faults (``LogFailed``, ``Damaged``) and a peer's
or client's faults (``BadBody``, ``FeedRefused``) are different classes.  Each class says three things:

    slug         the stable type that HTTP and the command line show
    retry_safe   nothing of this call was logged, nor will be: made again, it cannot double an entry
    transient    the same append may well be taken a moment later: a client tries until its deadline by itself

A class says ``retry_safe`` itself or inherits it from one that does; never from the root, which knows nothing.
"""

from __future__ import annotations

import copy
import os
from typing import Any, ClassVar, TypeVar

E = TypeVar("E", bound=BaseException)


class VlsnLogError(Exception):
    """The root of everything that vlsnlog raises on purpose; raised itself for a fault of the node's own."""

    slug: ClassVar[str] = "internal"
    retry_safe: ClassVar[bool] = False
    transient: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles by ``args`` and attributes, without ``__init__``: a pool of processes that cannot read an
        error back is broken for good."""
        reduced = super().__reduce__()
        assert isinstance(reduced, tuple)
        return _made, (type(self), *reduced[1]), *reduced[2:]


def _made(kind: type[VlsnLogError], *arguments: object) -> VlsnLogError:
    return kind.__new__(kind, *arguments)


# Errors in a client's request.


class BadBody(VlsnLogError):
    """A body, batch, block or message that is not what its format says; nothing of it was taken."""

    slug = "bad-body"
    retry_safe = True


class BadTransaction(BadBody):
    """A transaction that is not whole in its block."""


class BadArgument(VlsnLogError):
    """A parameter, flag or setting out of its range or not understood."""

    slug = "bad-argument"
    retry_safe = True


class TooLarge(VlsnLogError):
    """An entry, key, batch or body over its limit; refused before it was read or kept."""

    slug = "too-large"
    retry_safe = True


class UnsupportedType(VlsnLogError):
    """A content type that this endpoint does not read."""

    slug = "unsupported-type"
    retry_safe = True


class Forbidden(VlsnLogError):
    """A page of another site has sent this request, through somebody's browser."""

    slug = "forbidden"
    retry_safe = True


class Misdirected(VlsnLogError):
    """The request names a host that is not this node: it is not answered under that name."""

    slug = "misdirected"
    retry_safe = True


class NotFound(VlsnLogError):
    """No such path, file or thing."""

    slug = "not-found"
    retry_safe = True


class NotAllowed(VlsnLogError):
    """The method, or the state that the node is in, does not allow it; nothing was changed."""

    slug = "not-allowed"
    retry_safe = True


# Errors of reads.


class NotYet(VlsnLogError):
    """The VLSN is above what is durable."""

    slug = "not-yet"
    retry_safe = True


class Lagging(NotYet):
    """This node has not reached, within the timeout, the VLSN that a linearizable read has to show.  Ask again, or
    another node."""


class TooFarBehind(Lagging):
    """The node is further behind than the read allows, by a VLSN or by time, and has not caught up within the timeout.
    Ask again, or another node."""

    slug = "lagging"


class NotData(VlsnLogError):
    """The VLSN belongs to the log itself (TERM, GROUP, COMMIT, ABORT), not to a user's entry."""

    slug = "not-data"
    retry_safe = True


class NotInLog(VlsnLogError):
    """The log does not hold at ``vlsn`` the entry of ``term`` that a reader has read there. It holds one of ``found``:
    durable entries were lost, which only a person can order; read again from below."""

    slug = "not-in-log"
    retry_safe = True

    def __init__(self, message: str, *, vlsn: int, term: int, found: int) -> None:
        super().__init__(message)
        self.vlsn = vlsn
        self.term = term
        self.found = found


class Trimmed(VlsnLogError):
    """The VLSN was cleaned away; ``first`` is the first one still there."""

    slug = "trimmed"
    retry_safe = True

    def __init__(self, message: str, *, first: int) -> None:
        super().__init__(message)
        self.first = first


# Errors of appends.


class QueueFull(VlsnLogError):
    """The append queue is past its limit; nothing was logged.  Wait and send again."""

    slug = "queue-full"
    retry_safe = True
    transient = True


class DestinationFull(VlsnLogError):
    """The append was refused because a destination that it has messages for is full; nothing was logged.  It can be
    sent again once some of that destination's messages are acknowledged."""

    slug = "destination-full"
    retry_safe = True


class NoSpace(VlsnLogError):
    """The disk has no room for the next group; nothing of the append was logged."""

    slug = "no-space"
    retry_safe = True
    transient = True


class NoSegment(NoSpace):
    """The next segment cannot be made, though there is room: no descriptors, an I/O error.  It is tried again, and what
    fits the current one is taken; nothing of the append was logged."""

    slug = "no-segment"
    retry_safe = True
    transient = True


class NotMaster(VlsnLogError):
    """This node is not, or no longer, the master; nothing of the append was logged."""

    slug = "no-master"
    retry_safe = True
    transient = True


class InsufficientReplicas(VlsnLogError):
    """Too few replicas are connected for the ack policy; refused before anything was logged."""

    slug = "insufficient-replicas"
    retry_safe = True
    transient = True


class OutOfSequence(VlsnLogError):
    """A producer's submission does not follow on its last one, or is another than its sequence stands for. Nothing of
    it was logged. Begin again as another producer."""

    slug = "out-of-sequence"
    retry_safe = True


class StrongerDurability(VlsnLogError):
    """An append asks for more durability than the group's setting; nothing of it was logged. Ask for less or for none,
    or raise the setting."""

    slug = "stronger-durability"
    retry_safe = True


class UnknownProducer(VlsnLogError):
    """A submission of a producer that the log does not know, or no longer; nothing of it was logged now.  Its earlier
    appends without an answer may be in the log."""

    slug = "unknown-producer"
    retry_safe = False


class DuplicateForgotten(VlsnLogError):
    """A submission that was logged before, so long ago that where it lies is not remembered."""

    slug = "duplicate-forgotten"
    retry_safe = False


class OutcomeUnknown(VlsnLogError):
    """The append was logged but not acknowledged in time: it may survive, or be rolled back."""

    slug = "outcome-unknown"
    retry_safe = False


class TransactionGone(VlsnLogError):
    """The transaction is not staged any more: it was aborted, idle for too long, or its master leads no longer.
    Nothing of it was logged, nor ever will be. Run it again, in another one."""

    slug = "transaction-gone"
    retry_safe = True


class TransactionClosed(VlsnLogError):
    """The transaction's commit is under way or in the log: it takes no more entries, no abort, and no commit under
    another name.  Nothing was changed.  The same commit, sent again, answers with its outcome."""

    slug = "transaction-closed"
    retry_safe = True


class GroupBusy(VlsnLogError):
    """Another change of the group is not durable yet, or the master's term has only begun; nothing was logged."""

    slug = "group-busy"
    retry_safe = True
    transient = True


# Errors of the node itself.


class Damaged(VlsnLogError):
    """Bytes that were once synced do not read back: where, and which VLSN, as far as known.  Errors of reads only."""

    slug = "damaged"
    retry_safe = True

    def __init__(self, message: str, *, file: str = "", offset: int = 0, vlsn: int = 0) -> None:
        super().__init__(message)
        self.file = file
        self.offset = offset
        self.vlsn = vlsn


class NoRegularFile(VlsnLogError, OSError):
    """Something else stands where a file belongs: a FIFO, directory, socket, device or dangling link. Nothing was
    touched."""

    retry_safe = True


class Halted(VlsnLogError):
    """The node has stopped taking part and needs a person; the message says what to do."""

    slug = "halted"
    retry_safe = True


class RollbackProhibited(Halted):
    """A rollback would undo what is durable; nothing was changed.  Compare the copies before anything else."""

    def __init__(self, message: str, *, matchpoint: int, durable: int) -> None:
        super().__init__(message)
        self.matchpoint = matchpoint
        self.durable = durable


class Restoring(VlsnLogError):
    """A network restore of the directory has begun and is not over. It is no log until then; the node that owns it goes
    on with it when it is started."""

    slug = "not-ready"
    retry_safe = True
    transient = True


class CopyNeeded(VlsnLogError):
    """Too few other members are known to hold all that they acknowledged. This node's copy of the log is not given up,
    nor counted on by one that would."""

    slug = "not-ready"
    retry_safe = True
    transient = True


class ProducersMissing(VlsnLogError):
    """The node lost what it knew of producers with its `state`, and no member has told it yet. It cannot say whether
    this submission was here before. Nothing was logged; send it again."""

    slug = "not-ready"
    retry_safe = True
    transient = True


class LogFailed(VlsnLogError):
    """A write or sync failed: the page cache is not to be trusted, the process must end.  The next open may find
    unacknowledged appends in the log, or not."""

    retry_safe = False


class LogClosed(VlsnLogError):
    """The log, or the client, was closed before this was taken; an append that was taken ends otherwise."""

    slug = "not-ready"
    retry_safe = True


class LogInUse(VlsnLogError):
    """Another process has the directory open."""

    slug = "bad-argument"
    retry_safe = True


class WrongDirectory(VlsnLogError):
    """The directory belongs to another group, node, or format version."""

    slug = "bad-argument"
    retry_safe = True


# Errors of a feed or a peer before its upgrade.


class FeedRefused(VlsnLogError):
    """A feed or peer call that this node does not take; subclasses name why."""

    retry_safe = True


class WrongGroup(FeedRefused):
    slug = "wrong-group"


class WrongVersion(FeedRefused):
    """A file, a batch or a peer of a version that this binary does not read; nothing was changed.  Run a vlsnlog
    that does.  Never raised for a version that its checksum does not vouch for: that is damage."""

    slug = "wrong-version"


class WrongName(FeedRefused):
    slug = "wrong-name"


class WrongIncarnation(FeedRefused):
    slug = "wrong-incarnation"


class NotListed(FeedRefused):
    slug = "not-listed"


class StaleTerm(FeedRefused):
    """The term is behind; or a consumer's commit starts from a position that another one has replaced. Nothing of it
    was logged: the sender goes on from the present position, if at all."""

    slug = "stale-term"


class SinkRefused(VlsnLogError):
    """A batch that does not follow on the last logged one of its sink; nothing was logged. A person decides."""

    slug = "sink-refused"
    retry_safe = True


class DuplicateFeed(FeedRefused):
    slug = "duplicate-feed"


class ChannelClosed(VlsnLogError):
    """The other side of a message channel is gone; it may have taken what was sent last.

    ``code``: the one of its close, 0 where it has said none."""

    retry_safe = False

    def __init__(self, message: str = "", *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class Unreachable(VlsnLogError):
    """No connection to a peer could be made, or it gave no answer in time.  Of an append: it was never sent, for one
    that was and got no answer ends as ``OutcomeUnknown``.

    ``refused``: its host answered that nothing listens there, so its process has ended."""

    slug = "unreachable"
    retry_safe = True
    transient = True

    def __init__(self, detail: str, *, refused: bool = False) -> None:
        super().__init__(detail)
        self.refused = refused


class IntegrityFault(VlsnLogError):
    """Two copies that must be equal are not.

    ``vlsn``: which both hold, each in another block; 0 where it is not one VLSN's."""

    slug = "integrity-fault"
    retry_safe = False

    def __init__(self, detail: str, *, vlsn: int = 0) -> None:
        super().__init__(detail)
        self.vlsn = vlsn


def said_of(error: BaseException) -> str:
    """Describes an error for a person. Of an ``OSError`` that is the file, where it names one, and the system's own
    words; a library's may name what the system does not know."""
    if not isinstance(error, OSError):
        return str(error) or type(error).__name__
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
    named = isinstance(error.filename, str | bytes) and error.filename  # of a call on a descriptor: its number
    return f"{error.filename}: {reason}" if named else reason or type(error).__name__


def bare(error: E) -> E:
    """Returns ``error`` itself, with no traceback, cause or context. For whoever keeps it: its frames hold what they
    worked with, and a frame that holds the keeper makes a cycle, which stays until a collection."""
    error.__cause__ = error.__context__ = error.__traceback__ = None
    return error


def anew(error: E) -> E:
    """Returns another error that says the same: for one that is kept, and raised again and again. Each time that it is
    raised itself, it keeps the frames of its raiser."""
    return bare(copy.copy(error))


def classes() -> dict[str, type[VlsnLogError]]:
    """Returns the errors of this module by their names: what ``vlsn`` and ``repl`` give out as their own."""
    found = {name: each for name, each in globals().items() if isinstance(each, type)}
    return {name: each for name, each in found.items() if issubclass(each, VlsnLogError)}


def by_slug() -> dict[str, type[VlsnLogError]]:
    """Returns each slug's class (the first defined wins), for a client that reads a problem document."""
    found: dict[str, type[VlsnLogError]] = {}

    def walk(kind: type[VlsnLogError]) -> None:
        for child in kind.__subclasses__():
            found.setdefault(child.slug, child)
            walk(child)

    walk(VlsnLogError)
    found["internal"] = VlsnLogError
    return found
