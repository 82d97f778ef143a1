"""Problem documents (RFC 9457): makes one of each error, and makes an error of a problem document.

``type`` is the error's slug, which is stable and determines the status. ``title`` is the slug's general meaning, and
``detail`` says what happened this time. The error's own facts are added (``first``, ``file`` …).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from repl.web.limits import RETRY_AFTER_S
from repl.web.types import Response
from vlsn.errors import Damaged, Lagging, NotInLog, StaleSession, Trimmed, VlsnLogError, by_slug
from vlsn.format.records import JSON_FAULTS

CONTENT_TYPE = "application/problem+json"
DETAIL_BYTES_MAX = 600
DOCUMENT_BYTES_MAX = 4 * 1024
"""The most bytes of a problem document, if every byte of the detail is escaped."""

_log = logging.getLogger(__name__)
_KINDS: Mapping[str, tuple[int, str]] = {
    "bad-body": (400, "The body is not what its format says"),
    "bad-argument": (400, "A parameter is out of range or not understood"),
    "too-large": (413, "Over a size limit"),
    "unsupported-type": (415, "A content type that is not read here"),
    "unauthorized": (401, "Not signed with a key of the group, sent before, or without a known token"),
    "stale-session": (401, "The session of the signature is not known"),
    "forbidden": (403, "Not for whoever sent it"),
    "misdirected": (421, "This node is not known by that name"),
    "not-found": (404, "No such thing"),
    "not-allowed": (405, "That method does not go here"),
    "not-yet": (404, "The VLSN is above what is durable"),
    "lagging": (503, "Further behind than the read allows"),
    "not-data": (404, "The VLSN belongs to the log itself"),
    "trimmed": (410, "The VLSN was cleaned away"),
    "not-in-log": (409, "What was read before is not in the log"),
    "queue-full": (429, "A queue is at its limit"),
    "destination-full": (409, "A destination of it is full"),
    "no-space": (503, "The disk is full"),
    "no-segment": (503, "The next segment cannot be made"),
    "no-master": (503, "There is no master here"),
    "insufficient-replicas": (503, "Too few replicas for the ack policy"),
    "out-of-sequence": (409, "Not the producer's next submission"),
    "stronger-durability": (409, "More durability than the group's setting"),
    "unknown-producer": (409, "A producer that the log does not know"),
    "duplicate-forgotten": (409, "Logged before, but where is not remembered"),
    "transaction-gone": (409, "Nothing of the transaction is staged or logged"),
    "transaction-closed": (409, "The transaction's commit is under way or logged"),
    "group-busy": (409, "Another change of the group is under way"),
    "outcome-unknown": (504, "Logged, but not acknowledged in time"),
    "damaged": (500, "Bytes that were synced do not read back"),
    "halted": (503, "The node has stopped and needs a person"),
    "not-ready": (503, "The node is not ready"),
    "internal": (500, "A fault of the node"),
    "wrong-group": (409, "Another group"),
    "wrong-version": (400, "Another version: no level in common, or a file of another one"),
    "wrong-name": (409, "Another node"),
    "wrong-incarnation": (409, "Another incarnation"),
    "not-listed": (403, "The incarnation is not listed in the group"),
    "stale-term": (409, "The term, or the position that is to be replaced, is behind"),
    "sink-refused": (409, "The batch does not follow on what the sink has"),
    "duplicate-feed": (409, "That replica is fed already"),
    "unreachable": (503, "Another node did not answer in time"),
    "integrity-fault": (409, "Two copies that must be equal are not"),
}
_RETRY_AFTER = (429, 503)


def document(error: VlsnLogError, **more: Any) -> bytes:
    """Returns the problem document of ``error``, of at most ``DOCUMENT_BYTES_MAX``. A long detail is cut."""
    status, title = _status(error), _KINDS[error.slug][1]
    detail = (str(error) or title).encode("utf-8", "replace")[:DETAIL_BYTES_MAX].decode("utf-8", "ignore")
    fields: dict[str, Any] = {"type": error.slug, "title": title, "status": status, "detail": detail}
    match error:
        case Trimmed():
            fields["first"] = error.first
        case NotInLog():
            fields |= {"vlsn": error.vlsn, "term": error.term, "found": error.found}
        case StaleSession():
            fields["session"] = error.session
        case Damaged():
            fields |= {"file": error.file, "offset": error.offset, "vlsn": error.vlsn}
    return msgspec.json.encode(fields | more)


def response(error: VlsnLogError, headers: Mapping[str, str] | None = None, **more: Any) -> Response:
    status = _status(error)
    fields = {"Content-Type": CONTENT_TYPE}
    if status in _RETRY_AFTER:
        fields["Retry-After"] = str(RETRY_AFTER_S)
    if status == 401:
        fields["WWW-Authenticate"] = "Bearer"
    if headers:
        fields.update(headers)
    return Response(status, fields, document(error, **more))


def internal(fault: BaseException, what: str) -> VlsnLogError:
    """Logs a fault of ours, and makes the error that reports the fault to a client without its details."""
    _log.error("%s failed: %r", what, fault, exc_info=fault)
    return VlsnLogError(f"a fault of the node ({type(fault).__name__}); its log says more")


def status_of(slug: str) -> int:
    return _KINDS[slug][0]


def title_of(slug: str) -> str:
    return _KINDS[slug][1]


def status_of_kind(kind: type[VlsnLogError]) -> int:
    """Returns the status of the errors of a class."""
    return 503 if issubclass(kind, Lagging) else status_of(kind.slug)


def _status(error: VlsnLogError) -> int:
    """Returns the slug's status. A durable entry that this node does not have yet gives 503, because another try will
    find it."""
    return status_of_kind(type(error))


class _Document(msgspec.Struct, gc=False):
    type: str = "internal"
    detail: str = ""
    first: int = 0
    file: str = ""
    offset: int = 0
    vlsn: int = 0
    term: int = 0
    found: int = 0
    session: str = ""


_decoder = msgspec.json.Decoder(_Document)
_classes = by_slug()


def error_of(body: bytes | memoryview) -> VlsnLogError:
    """Returns the error that a peer's problem document describes. If the document's type is unknown, returns an error
    of the root class."""
    try:
        read = _decoder.decode(body)
    except JSON_FAULTS:
        return VlsnLogError("the peer's answer is no problem document")
    kind = _classes.get(read.type, VlsnLogError)
    if kind is Trimmed:
        return Trimmed(read.detail, first=read.first)
    if kind is NotInLog:
        return NotInLog(read.detail, vlsn=read.vlsn, term=read.term, found=read.found)
    if kind is StaleSession:
        return StaleSession(read.detail, session=read.session)
    if kind is Damaged:
        return Damaged(read.detail, file=read.file, offset=read.offset, vlsn=read.vlsn)
    return kind(read.detail)
