"""The errors of vlsnlog, with one root class.

There is one class for each kind of error that a caller would handle differently. Faults of this node (``LogFailed``,
``Damaged``) and faults of a peer or client (``BadBody``, ``FeedRefused``) have different classes. Each class defines
four attributes:

    slug         the stable type that HTTP and the command line show
    retry_safe   nothing of the call was or will be logged, so that repeating the call cannot log an entry twice
    transient    the same append may well succeed a moment later: a client repeats it until its deadline
    finding      a command that ends with the error has found something out: its exit status is 1, else 2

A class sets ``retry_safe`` itself or inherits it from a class that does, but never from the root class.
"""

from __future__ import annotations

import copy
import os
from typing import Any, ClassVar, TypeVar

E = TypeVar("E", bound=BaseException)


class VlsnLogError(Exception):
    """The root class of all errors that vlsnlog raises on purpose. The class itself is raised for a fault of the
    node."""

    slug: ClassVar[str] = "internal"
    retry_safe: ClassVar[bool] = False
    transient: ClassVar[bool] = False
    finding: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles the error by ``args`` and attributes, without ``__init__``. An error that cannot be
        unpickled would break a pool of processes for good."""
        reduced = super().__reduce__()
        assert isinstance(reduced, tuple)
        return _made, (type(self), *reduced[1]), *reduced[2:]


def _made(kind: type[VlsnLogError], *arguments: object) -> VlsnLogError:
    return kind.__new__(kind, *arguments)


# Errors in a client's request.


class BadBody(VlsnLogError):
    """A body, batch, block or message does not match its format. Nothing of the body, batch, block or message was
    accepted."""

    slug = "bad-body"
    retry_safe = True


class BadTransaction(BadBody):
    """A transaction is incomplete in its block."""


class BadArgument(VlsnLogError):
    """A parameter, flag or setting is out of range or not understood."""

    slug = "bad-argument"
    retry_safe = True


class TooLarge(VlsnLogError):
    """An entry, key, batch or body is over its limit. Nothing of a refused entry was read or stored."""

    slug = "too-large"
    retry_safe = True


class UnsupportedType(VlsnLogError):
    """The endpoint does not accept this content type."""

    slug = "unsupported-type"
    retry_safe = True


class Forbidden(VlsnLogError):
    """A page of another site has sent this request through a user's browser, or the request's token lacks a role, or
    another right."""

    slug = "forbidden"
    retry_safe = True


class Unauthorized(VlsnLogError):
    """A client's call has no token that is known here, or its token has ended. Or a member's call is not signed with a
    key of the group, or was made before. Nothing of the call was looked at."""

    slug = "unauthorized"
    retry_safe = True


class Misdirected(VlsnLogError):
    """The request names a host that is not this node, so this node does not answer it."""

    slug = "misdirected"
    retry_safe = True


class NotFound(VlsnLogError):
    """There is no such path, file or object."""

    slug = "not-found"
    retry_safe = True


class NotAllowed(VlsnLogError):
    """The method or the node's present state does not allow the call. Nothing was changed."""

    slug = "not-allowed"
    retry_safe = True


# Errors of reads.


class NotYet(VlsnLogError):
    """The VLSN is above the durable end, so it cannot be read yet."""

    slug = "not-yet"
    retry_safe = True


class Lagging(NotYet):
    """This node has not reached the VLSN of a linearizable read within the timeout. Repeat the read, or send it to
    another node."""


class TooFarBehind(Lagging):
    """The node is further behind than the read allows, in VLSNs or in time, and has not caught up within the timeout.
    Repeat the read, or send it to another node."""

    slug = "lagging"


class NotData(VlsnLogError):
    """The VLSN belongs to the log itself (TERM, GROUP, COMMIT, ABORT), not to a user's entry."""

    slug = "not-data"
    retry_safe = True


class NotInLog(VlsnLogError):
    """The log does not have, at ``vlsn``, the entry of ``term`` that a reader has read before. The log's entry at
    ``vlsn`` is of term ``found``. Durable entries were lost, which only a person can have ordered. Read again from a
    lower VLSN."""

    slug = "not-in-log"
    retry_safe = True

    def __init__(self, message: str, *, vlsn: int, term: int, found: int) -> None:
        super().__init__(message)
        self.vlsn = vlsn
        self.term = term
        self.found = found


class Trimmed(VlsnLogError):
    """The VLSN was cleaned away. ``first`` is the first VLSN that is still in the log."""

    slug = "trimmed"
    retry_safe = True

    def __init__(self, message: str, *, first: int) -> None:
        super().__init__(message)
        self.first = first


# Errors of appends.


class QueueFull(VlsnLogError):
    """The append queue is over its limit. Nothing of the append was logged. Wait, and send the append again."""

    slug = "queue-full"
    retry_safe = True
    transient = True


class DestinationFull(VlsnLogError):
    """The append was refused because a destination that would get messages from it is full. Nothing was logged. Send
    the append again once some of that destination's messages are acknowledged."""

    slug = "destination-full"
    retry_safe = True


class NoSpace(VlsnLogError):
    """The disk has no space for the next group of appends. Nothing of this append was logged."""

    slug = "no-space"
    retry_safe = True
    transient = True


class NoSegment(NoSpace):
    """The next segment cannot be made although the disk has space: no file descriptor is free, or an I/O error
    occurred. The node tries again, and appends that fit the current segment are accepted. Nothing of this append was
    logged."""

    slug = "no-segment"
    retry_safe = True
    transient = True


class NotMaster(VlsnLogError):
    """This node is not, or no longer, the master. Nothing of the append was logged."""

    slug = "no-master"
    retry_safe = True
    transient = True


class InsufficientReplicas(VlsnLogError):
    """Too few replicas are connected for the ack policy. The append was refused before anything was logged."""

    slug = "insufficient-replicas"
    retry_safe = True
    transient = True


class OutOfSequence(VlsnLogError):
    """The sequence of a producer's submission is not the next one, or another submission was logged with it. Nothing of
    this submission was logged. Begin again as a new producer."""

    slug = "out-of-sequence"
    retry_safe = True


class StrongerDurability(VlsnLogError):
    """An append requests more durability than the group's setting. Nothing of the append was logged. Request less
    durability, or none, or raise the setting."""

    slug = "stronger-durability"
    retry_safe = True


class UnknownProducer(VlsnLogError):
    """The submission's producer is unknown to the log, or was forgotten. Nothing of this call was logged.
    Earlier appends of the producer that got no answer may be in the log."""

    slug = "unknown-producer"
    retry_safe = False


class DuplicateForgotten(VlsnLogError):
    """The submission was logged before, but so long ago that its VLSNs are no longer remembered."""

    slug = "duplicate-forgotten"
    retry_safe = False


class OutcomeUnknown(VlsnLogError):
    """The append was logged but not acknowledged in time, so it may be kept or rolled back."""

    slug = "outcome-unknown"
    retry_safe = False
    finding = True


class TransactionGone(VlsnLogError):
    """The transaction is no longer staged: it was aborted, was idle for too long, or its master no longer leads.
    Nothing of the transaction was or will be logged. Run the transaction again as a new one."""

    slug = "transaction-gone"
    retry_safe = True


class TransactionClosed(VlsnLogError):
    """The transaction's commit is under way or in the log. The transaction accepts no more entries, no abort, and no
    commit under another name. Nothing was changed. The same commit, sent again, is answered with its outcome."""

    slug = "transaction-closed"
    retry_safe = True


class GroupBusy(VlsnLogError):
    """Another change of the group is not durable yet, or the master's term has only begun. Nothing was logged."""

    slug = "group-busy"
    retry_safe = True
    transient = True


# Errors of the node itself.


class Damaged(VlsnLogError):
    """Bytes that were once synced cannot be read back. The error has the place and the VLSN, as far as they are known.
    Only reads raise this error."""

    slug = "damaged"
    retry_safe = True
    finding = True

    def __init__(self, message: str, *, file: str = "", offset: int = 0, vlsn: int = 0) -> None:
        super().__init__(message)
        self.file = file
        self.offset = offset
        self.vlsn = vlsn


class NoRegularFile(VlsnLogError, OSError):
    """Something else is in the place of a file: a FIFO, directory, socket, device or dangling link. Nothing was
    changed."""

    retry_safe = True


class Halted(VlsnLogError):
    """The node has stopped, and needs a person. The error's message says what to do."""

    slug = "halted"
    retry_safe = True


class RollbackProhibited(Halted):
    """A rollback would undo durable entries. Nothing was changed. Compare the copies of the log before doing anything
    else."""

    def __init__(self, message: str, *, matchpoint: int, durable: int) -> None:
        super().__init__(message)
        self.matchpoint = matchpoint
        self.durable = durable


class Restoring(VlsnLogError):
    """A network restore of the directory has begun and is not finished. Until a restore is finished, the directory has
    no valid log. The node that owns the directory continues the restore when it is started."""

    slug = "not-ready"
    retry_safe = True
    transient = True


class CopyNeeded(VlsnLogError):
    """Too few other members are known to have everything that they acknowledged. So this node must not give up its copy
    of the log. Another node that wants to give up its own copy must not rely on this node's copy either."""

    slug = "not-ready"
    retry_safe = True
    transient = True


class ProducersMissing(VlsnLogError):
    """The node lost its table of producers with its ``state``, and no member has provided the table yet. So the node
    cannot decide whether this submission was logged before. Nothing was logged; send the submission again."""

    slug = "not-ready"
    retry_safe = True
    transient = True


class LogFailed(VlsnLogError):
    """A write or sync failed. The system's page cache must not be trusted any more, so the process must end.
    Unacknowledged appends may or may not be in the log when it is next opened."""

    retry_safe = False


class LogClosed(VlsnLogError):
    """The log or the client was closed before this call was accepted. An append accepted earlier ends with another
    error or an answer."""

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
    """This node refuses a feed or a peer's call. The subclass says why."""

    retry_safe = True


class WrongGroup(FeedRefused):
    slug = "wrong-group"


class WrongVersion(FeedRefused):
    """A file, a batch or a peer has a version that this binary does not support. Nothing was changed. Run a vlsnlog
    that supports this version. A version with a wrong checksum is damage, and never raises ``WrongVersion``."""

    slug = "wrong-version"


class WrongName(FeedRefused):
    slug = "wrong-name"


class WrongIncarnation(FeedRefused):
    slug = "wrong-incarnation"


class NotListed(FeedRefused):
    slug = "not-listed"


class StaleTerm(FeedRefused):
    """The term is out of date. Or a consumer's commit starts from a position that was replaced since. Nothing of the
    commit was logged. The sender may continue from the present position."""

    slug = "stale-term"


class StaleSession(VlsnLogError):
    """The call's signature is right, but its session is unknown. The content of the call was not read. The sender signs
    the call again with ``session``."""

    slug = "stale-session"
    retry_safe = True

    def __init__(self, detail: str, *, session: str = "") -> None:
        super().__init__(detail)
        self.session = session


class SinkRefused(VlsnLogError):
    """The batch does not follow the last logged batch of its sink. Nothing was logged. A person has to decide how to
    continue."""

    slug = "sink-refused"
    retry_safe = True


class DuplicateFeed(FeedRefused):
    slug = "duplicate-feed"


class ChannelClosed(VlsnLogError):
    """The other side of a message channel is gone. The other side may have received the last messages.

    ``code`` is the code with which the other side closed the channel, or 0 if there was none.
    """

    retry_safe = False

    def __init__(self, message: str = "", *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class Unreachable(VlsnLogError):
    """No connection to a peer could be made, or the peer did not answer in time. An append that raises this error was
    never sent. An append that was sent and got no answer raises ``OutcomeUnknown``.

    With ``refused``, the peer's host answered that nothing listens on the port, so the peer's process has ended. With
    ``tls``, the handshake failed, and it fails again until somebody changes files or URLs."""

    slug = "unreachable"
    retry_safe = True
    transient = True

    def __init__(self, detail: str, *, refused: bool = False, tls: bool = False) -> None:
        super().__init__(detail)
        self.refused = refused
        self.tls = tls


class IntegrityFault(VlsnLogError):
    """Two copies of a block differ, although they must be equal.

    Both copies of the log have ``vlsn``, but in different blocks. ``vlsn`` is 0 if the fault is not at a single VLSN.
    """

    slug = "integrity-fault"
    retry_safe = False
    finding = True

    def __init__(self, detail: str, *, vlsn: int = 0) -> None:
        super().__init__(detail)
        self.vlsn = vlsn


def said_of(error: BaseException) -> str:
    """Describes an error for a person. For an ``OSError``, the description has the file, if the error names one, and
    the system's own text. A library's error may name something that the system does not know."""
    if not isinstance(error, OSError):
        return str(error) or type(error).__name__
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
    # for a call on a descriptor, ``filename`` is a number
    named = isinstance(error.filename, str | bytes) and error.filename
    return f"{error.filename}: {reason}" if named else reason or type(error).__name__


def bare(error: E) -> E:
    """Returns ``error`` itself, without its traceback, cause and context. An error that is to be kept must be passed
    through ``bare`` first. The traceback of an error has frames, whose local variables may refer to the object that
    keeps the error. That would be a reference cycle, which lives until a garbage collection."""
    error.__cause__ = error.__context__ = error.__traceback__ = None
    return error


def anew(error: E) -> E:
    """Returns a copy of the error. The copy is for an error that is kept and raised again and again: if the kept error
    itself were raised, it would keep the frames of each raise."""
    return bare(copy.copy(error))


def classes() -> dict[str, type[VlsnLogError]]:
    """Returns the errors of this module by their names, for ``vlsn`` and ``repl`` to export."""
    found = {name: each for name, each in globals().items() if isinstance(each, type)}
    return {name: each for name, each in found.items() if issubclass(each, VlsnLogError)}


def by_slug() -> dict[str, type[VlsnLogError]]:
    """Returns the class of each slug (the first one defined), for a client that decodes an error answer."""
    found: dict[str, type[VlsnLogError]] = {}

    def walk(kind: type[VlsnLogError]) -> None:
        for child in kind.__subclasses__():
            found.setdefault(child.slug, child)
            walk(child)

    walk(VlsnLogError)
    found["internal"] = VlsnLogError
    return found
