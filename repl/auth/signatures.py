"""Signatures of what members say to each other, and commands to nodes: of a call, and below it of its answer. Pure.

    Vlsnlog-Auth: v1 key=ID from=n2 to=n1 process=HEX16 session=HEX32 n=17 body=HEX64 mac=HEX64
    Vlsnlog-Auth: v1 key=ID mac=HEX64

    call      HMAC-SHA256(key, "request" group method target from to process session n sha256(body) [feed's headers])
    answer    HMAC-SHA256(key, "answer" mac-of-the-call status sha256(body))

A call names the hash of its body, so its signature is checked at its head, before its body is read.
Each part is preceded by its length (u32, little-endian), so no two lists of parts have the same bytes. ``target`` is
the path and query as they were sent. Numbers are decimal text; hashes are 32 bytes. A member calls a member by name; a
command is from ``@cli`` to a HOST:PORT. A feed's headers that decide whom
it feeds are signed, too; a missing one counts as empty. An answer is signed for one call and can answer no other.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from repl.auth.group_key import Key
from vlsn.errors import Unauthorized
from vlsn.seams import Buffer

HEADER = "Vlsnlog-Auth"
VERSION = "v1"
NO_SESSION = "0" * 32
"""The session of a first call. It is never one that a node gives, so the answer names one."""
N_MAX = 10**18
FEED_HEADERS = (
    "Vlsnlog-Version",
    "Vlsnlog-Group",
    "Vlsnlog-Node",
    "Vlsnlog-Incarnation",
    "Vlsnlog-To",
    "Vlsnlog-To-Incarnation",
    "Vlsnlog-Term",
    "Vlsnlog-Process",
)
_NAME = r"[A-Za-z0-9._-]{1,32}"
_PLACE = r"[A-Za-z0-9._:\[\]-]{1,263}"
_CALL = re.compile(
    rf"v1 key=([a-z0-9]{{1,16}}) from=(@cli|{_NAME}) to=({_PLACE}) process=([0-9a-f]{{16}}) session=([0-9a-f]{{32}}) "
    r"n=([1-9][0-9]{0,17}) body=([0-9a-f]{64}) mac=([0-9a-f]{64})\Z"
)
_ANSWER = re.compile(r"v1 key=([a-z0-9]{1,16}) mac=([0-9a-f]{64})\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """The fields of a call's signature besides the key: ``n`` numbers the calls of one session, from 1 to
    ``N_MAX``."""

    sender: str
    to: str
    process: str
    session: str
    n: int


@dataclass(frozen=True, slots=True)
class CallSignature:
    """The header of a call."""

    key: str
    signer: Signer
    body: bytes
    """The ``digest`` of the call's body."""
    mac: bytes

    def header(self) -> str:
        by = self.signer
        return (
            f"{VERSION} key={self.key} from={by.sender} to={by.to} process={by.process} session={by.session} n={by.n} "
            f"body={self.body.hex()} mac={self.mac.hex()}"
        )


def digest(body: Buffer) -> bytes:
    """Returns the SHA-256 of a body."""
    return sha256(body).digest()


def sign_call(
    key: Key, signer: Signer, *, group: str, method: str, target: str, body: bytes, feed: Sequence[str] = ()
) -> CallSignature:
    """Signs a call. ``body`` is the body's ``digest``; ``feed`` are the values of ``FEED_HEADERS``, for a feed only."""
    by = (signer.sender, signer.to, signer.process, signer.session, str(signer.n))
    parts: list[str | bytes] = ["request", group, method, target, *by, body, *feed]
    return CallSignature(key.id, signer, body, _mac(key, parts))


def read_call(text: str) -> CallSignature:
    """Parses the header of a call. Raises ``Unauthorized``."""
    match = _CALL.match(text)
    if match is None:
        raise Unauthorized(f"the header {HEADER} is not understood")
    key, sender, to, process, session, n, body, mac = match.groups()
    signer = Signer(sender=sender, to=to, process=process, session=session, n=int(n))
    return CallSignature(key, signer, bytes.fromhex(body), bytes.fromhex(mac))


def sign_answer(key: Key, call: bytes, status: int, body: bytes) -> str:
    """Returns the header that signs the answer to the call with the MAC ``call``; ``body`` as for ``sign_call``."""
    return f"{VERSION} key={key.id} mac={_mac(key, ('answer', call, str(status), body)).hex()}"


def is_answer(key: Key, text: str, call: bytes, status: int, body: bytes) -> bool:
    """Says whether the header ``text`` signs that answer with ``key``."""
    match = _ANSWER.match(text)
    expected = _mac(key, ("answer", call, str(status), body))
    return match is not None and match[1] == key.id and equal(bytes.fromhex(match[2]), expected)


def equal(one: bytes, other: bytes) -> bool:
    """Compares two MACs in a time that does not depend on where they differ."""
    return hmac.compare_digest(one, other)


def feed_values(headers: Mapping[str, str]) -> list[str]:
    """Returns the values of ``FEED_HEADERS``, "" for a missing one."""
    return [headers.get(name, "") for name in FEED_HEADERS]


def _mac(key: Key, parts: Iterable[str | bytes]) -> bytes:
    message = bytearray()
    for part in parts:
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        message += len(data).to_bytes(4, "little") + data
    return hmac.digest(key.secret, bytes(message), "sha256")
