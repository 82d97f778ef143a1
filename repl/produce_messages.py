"""The messages of ``WS /v1/produce``, as client and server build and read them. Numbers are little-endian.

Client to server: each message is one append. A client's message has a 16-byte header, then one batch
(``vlsn/format/batch.py``).

    0    1    2          4          8       16
    |type|acks|durability|timeout_ms|   id   | batch …        type 1; acks 0 none, 1 majority, 2 all

``durability`` 0 is the group's setting. In any other ``durability`` the low byte is for the master and the high byte
for the replicas, each 1 no_sync, 2 write_no_sync, 3 sync. The field is known from level 2 on; an older server ends the
connection if it is not 0.

Type 2 is a producer's append: after ``id`` comes ``born``, a u64, then the batch at 24. ``born`` is a VLSN that was
durable before the producer's first submission, the same in all of its messages. By ``born`` the node distinguishes a
new producer from one that it has forgotten.

Type 3 is a whole transaction: after ``id`` come ``born``, ``producer`` and ``sequence``, u64 each, then a batch at 40
that names no producer. The transaction's name is a producer's submission, or a random u63 with ``HANDLE_SEQUENCE``. If
the transaction was never sent before, ``born`` may be ``NUMBER_MAX``, because the log cannot have forgotten it. Type 3
is known from level 2 on (``level`` in a status); an older server ends the connection for it.

Type 4 is a whole transaction that also sets positions of consumers, or states of sinks. After ``sequence`` come
``sets_bytes``, a u64, then JSON as in the body of a staged commit, padded with zeros to 8. After the JSON comes the
batch, or nothing for a COMMIT alone. A client requests type 4 by ``?types=4`` at the upgrade, which an older server
refuses.

Server to client: each message has one or more answers, in the order of the requests. An answer is 40 bytes, then
``problem_bytes`` of a problem document, padded with zeros to 8.

    0       8      9       10     12            16     24      32     40
    |   id  |status|durable|synced|problem_bytes| term | first | last | problem …

``durable``: bit 0 says whether the append is durable. The bits above bit 0 are the durability at which the append was
answered, two bits for the master and two for the replicas, each 0 sync, 1 write_no_sync, 2 no_sync. ``status``: 0 done,
1 refused, 2 done before (a producer's duplicate: term and VLSNs are the original's).

1. Ids rise by one from any start.
2. Answers come in the order of the ids.
3. After one refusal every later request of the connection is refused with the same type, also if it was held back at
   that moment (``repl.lead.held_appends``). So no request is logged after one that was refused. While it is undecided
   whether a request is refused, no later request is accepted.
4. Any other contents of a message are a ``BadBody``, which ends the connection.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

import msgspec

from repl.api import Acks, Appended
from vlsn.durability import SYNCED, GroupDurability, answered_code, answered_of, asked_code, asked_of
from vlsn.errors import BadBody
from vlsn.format.batch import BATCH_BYTES
from vlsn.format.frame import padded
from vlsn.format.producer_columns import HANDLE_SEQUENCE, SEQUENCE_MAX
from vlsn.ids import NUMBER_MAX, Term, Vlsn
from vlsn.limits import BODY_BYTES_MAX
from vlsn.seams import Buffer

REQUEST = Struct("<BBHIQ")
REQUEST_BYTES = 16
ANSWER = Struct("<QBBHIQQQ")
ANSWER_BYTES = 40
_BORN = Struct("<Q")
_NAMED = Struct("<QQQ")
_NAMED_REQUEST = Struct("<BBHIQQQQ")
_SETS = Struct("<Q")
assert (
    REQUEST.size == REQUEST_BYTES and _NAMED_REQUEST.size == REQUEST_BYTES + _NAMED.size and ANSWER.size == ANSWER_BYTES
)

GRAMMAR: Final = """\
; binary messages; u8, u16, u32 and u64 are little-endian
request     = append / append-once / transaction / setting     ; client to node, one a message
append      = %x01 head batch
append-once = %x02 head born batch                             ; the batch names the producer
transaction = %x03 head born producer sequence batch           ; one transaction, whole
setting     = %x04 head born producer sequence sets [batch]    ; only after ?types=4
head        = acks durability timeout-ms id
acks        = u8                        ; 0 none, 1 majority, 2 all
durability  = u8 u8                     ; master, replicas: 0 the group's, 1 no_sync, 2 write_no_sync, 3 sync
timeout-ms  = u32
id          = u64                       ; rises by one from any start
born        = u64
producer    = u64
sequence    = u64
sets        = sets-bytes json pad       ; the body of a staged commit
sets-bytes  = u64
batch       = *OCTET                    ; as a body of application/x-vlsnlog-batch
answers     = 1*answer                  ; node to client, in the order of the requests
answer      = id status durable synced problem-bytes term first last [problem pad]
status      = u8                        ; 0 done, 1 refused, 2 done before
durable     = u8                        ; bit 0: durable; bits 1-2 master, 3-4 replicas: 0 sync, 1 written, 2 memory
synced      = u16
problem-bytes = u32
term        = u64
first       = u64
last        = u64
problem     = json                      ; problem-bytes of a problem document
pad         = *%x00                     ; to a multiple of 8
; after one refusal every later request of the connection is refused
"""
"""The messages in ABNF (RFC 5234)."""
APPEND = 1
APPEND_ONCE = 2
TRANSACTION = 3
TRANSACTION_SETS = 4
TYPES_MAX = TRANSACTION_SETS
"""The highest type of message that this server accepts from a client."""
DONE = 0
REFUSED = 1
REPEATED = 2
TIMEOUT_MS_MAX = 600_000
PROBLEM_BYTES_MAX = 4 * 1024
SETS_BYTES_MAX = 64 * 1024
REQUESTS_IN_FLIGHT_MAX = 1024
"""The most requests of one connection that may have no answer yet. At this limit the server stops reading."""
REQUEST_MESSAGE_BYTES_MAX = REQUEST_BYTES + _NAMED.size + _SETS.size + SETS_BYTES_MAX + BATCH_BYTES + BODY_BYTES_MAX
ANSWERS_MESSAGE_BYTES_MAX = REQUESTS_IN_FLIGHT_MAX * (ANSWER_BYTES + PROBLEM_BYTES_MAX)

_ACKS = (Acks.NONE, Acks.MAJORITY, Acks.ALL)
_ACKS_CODE = {acks: code for code, acks in enumerate(_ACKS)}
_PADDING = tuple(bytes(count) for count in range(8))


class Answer(msgspec.Struct, frozen=True, gc=False):
    """One answer. ``problem`` is the problem document of a refusal; it is empty otherwise."""

    id: int
    durable: bool
    synced: int
    term: Term
    first: Vlsn
    last: Vlsn
    problem: bytes
    duplicate: bool = False
    durability: GroupDurability = SYNCED

    @property
    def done(self) -> bool:
        return not self.problem

    def appended(self, acks: Acks) -> Appended:
        """Returns the ``Appended`` of an answer with a success status. ``acks`` is the policy that the append
        requested."""
        return Appended(
            self.first, self.last, self.term, self.durable, self.synced, acks, self.duplicate, self.durability
        )


class Asked(NamedTuple):
    """The header of one request. The batch starts at offset ``batch_at`` of the message."""

    id: int
    acks: Acks
    timeout_ms: int
    born: int | None
    batch_at: int
    transaction: tuple[int, int] | None = None
    """The name of a whole transaction: the id of a producer or of a handle, and the sequence."""
    durability: GroupDurability | None = None
    sets: bytes = b""
    """The positions and states that the transaction sets, as JSON. If there are any, the batch may be missing."""


def request_header(
    id: int,
    acks: Acks,
    timeout_ms: int,
    born: int | None = None,
    transaction: tuple[int, int] | None = None,
    durability: GroupDurability | None = None,
    sets: bytes = b"",
) -> bytes:
    """Packs the header of one message, which precedes the batch. ``transaction`` is the name of a whole transaction,
    and ``born`` belongs to it. ``sets`` are the positions and states that the transaction sets."""
    asked = 0 if durability is None else asked_code(durability)
    if transaction is not None:
        assert born is not None
        kind = TRANSACTION_SETS if sets else TRANSACTION
        head = _NAMED_REQUEST.pack(kind, _ACKS_CODE[acks], asked, timeout_ms, id, born, *transaction)
        return head + _SETS.pack(len(sets)) + sets + _PADDING[-len(sets) % 8] if sets else head
    if born is None:
        return REQUEST.pack(APPEND, _ACKS_CODE[acks], asked, timeout_ms, id)
    return REQUEST.pack(APPEND_ONCE, _ACKS_CODE[acks], asked, timeout_ms, id) + _BORN.pack(born)


def decode_request(message: Buffer) -> Asked:
    """Decodes the header of a request. Raises ``BadBody``."""
    if len(message) < REQUEST_BYTES:
        raise BadBody(f"a produce message of {len(message)} bytes has no whole header ({REQUEST_BYTES} bytes)")
    kind, acks, code, timeout_ms, id = REQUEST.unpack_from(message)
    if not APPEND <= kind <= TYPES_MAX:
        raise BadBody(f"a produce message of unknown type {kind}")
    if acks >= len(_ACKS):
        raise BadBody(f"unknown acks code {acks}")
    if not 0 < timeout_ms <= TIMEOUT_MS_MAX:
        raise BadBody(f"timeout of {timeout_ms} ms is not in 1–{TIMEOUT_MS_MAX}")
    durability = _durability(code) if code else None
    if kind == APPEND:
        return Asked(id, _ACKS[acks], timeout_ms, None, REQUEST_BYTES, None, durability)
    if kind >= TRANSACTION:
        return _transaction(kind, message, id, _ACKS[acks], timeout_ms, durability)
    if len(message) < REQUEST_BYTES + _BORN.size:
        raise BadBody(f"a produce message of {len(message)} bytes ends before its producer's VLSN")
    [born] = _BORN.unpack_from(message, REQUEST_BYTES)
    if born > NUMBER_MAX:
        raise BadBody(f"a producer born at VLSN {born}")
    return Asked(id, _ACKS[acks], timeout_ms, born, REQUEST_BYTES + _BORN.size, None, durability)


def _durability(code: int) -> GroupDurability | None:
    try:
        return asked_of(code)
    except ValueError:
        raise BadBody(f"unknown durability code {code:#x}") from None


def _transaction(
    kind: int, message: Buffer, id: int, acks: Acks, timeout_ms: int, durability: GroupDurability | None
) -> Asked:
    size, batch_at, sets = len(message), REQUEST_BYTES + _NAMED.size, b""
    if size < batch_at:
        raise BadBody(f"a produce message of {size} bytes ends before its transaction's name")
    born, producer, sequence = _NAMED.unpack_from(message, REQUEST_BYTES)
    is_handle = sequence == HANDLE_SEQUENCE
    if born > NUMBER_MAX or not producer or (producer > NUMBER_MAX if is_handle else sequence > SEQUENCE_MAX):
        raise BadBody(f"a transaction named {producer:#x}, {sequence}, born at VLSN {born}")
    if kind == TRANSACTION_SETS:
        at = batch_at + _SETS.size
        [sets_bytes] = _SETS.unpack_from(message, batch_at) if size >= at else (0,)
        end, batch_at = at + sets_bytes, at + padded(sets_bytes)
        if not 0 < sets_bytes <= SETS_BYTES_MAX or size < batch_at or any(message[end:batch_at]):
            raise BadBody(f"a produce message of {size} bytes with {sets_bytes} bytes of what it sets")
        sets = bytes(message[at:end])
    return Asked(id, acks, timeout_ms, born, batch_at, (producer, sequence), durability, sets)


def done_answer(id: int, appended: Appended) -> bytes:
    status = REPEATED if appended.duplicate else DONE
    durable: int = appended.durable
    if appended.durability is not SYNCED:
        durable |= answered_code(appended.durability) << 1
    return ANSWER.pack(id, status, durable, appended.synced, 0, appended.term, appended.first, appended.last)


def refused_answer(id: int, problem: bytes) -> bytes:
    """Packs a refusal. ``problem`` is a problem document of 1 to ``PROBLEM_BYTES_MAX`` bytes."""
    assert 0 < len(problem) <= PROBLEM_BYTES_MAX
    head = ANSWER.pack(id, REFUSED, 0, 0, len(problem), 0, 0, 0)
    return head + problem + _PADDING[-len(problem) % 8]


def decode_answers(message: Buffer) -> list[Answer]:
    """Decodes all answers of one message, which has at least one. Raises ``BadBody``."""
    answers: list[Answer] = []
    at, end = 0, len(message)
    while at < end or not answers:
        if end - at < ANSWER_BYTES:
            raise BadBody(f"an answer at {at} is cut short")
        id, status, durable, synced, problem_bytes, term, first, last = ANSWER.unpack_from(message, at)
        at += ANSWER_BYTES
        held = SYNCED
        if durable > 1:
            try:
                held = answered_of(durable >> 1)
            except ValueError:
                raise BadBody(f"an answer with durable {durable}") from None
        if status > REPEATED or (status == REFUSED) != (problem_bytes > 0):
            raise BadBody(f"an answer with status {status}, durable {durable}, {problem_bytes} problem bytes")
        problem = b""
        if problem_bytes:
            if problem_bytes > PROBLEM_BYTES_MAX or end - at < padded(problem_bytes):
                raise BadBody(f"a problem document of {problem_bytes} bytes does not fit its message")
            problem = bytes(message[at : at + problem_bytes])
            at += padded(problem_bytes)
        durable &= 1
        answers.append(
            Answer(id, durable == 1, synced, Term(term), Vlsn(first), Vlsn(last), problem, status == REPEATED, held)
        )
    return answers
