"""Tokens of clients: secrets that give roles. The group's log holds their hashes, in a share of the small state.

    vlt_k3f9a1c8_NQeo…43 characters…      ID (8 of a–z 0–9) and secret (256 random bits, base64url)

    token/k3f9a1c8    {"sha256": "8c1d…", "roles": ["append"], "keys": "order-", "expires_us": 1790…}

1. Only the client that makes a token ever has its secret. The log, which readers of segments see, holds the SHA-256 of
   the secret. A slow hash would add nothing, since the secret is random.
2. A token that names a ``uri`` has no secret. A client certificate with that URI counts as the token.
3. A token lasts until it is removed, or until ``expires_us``. A token whose value cannot be read has no role.
4. The table is a part of the small state, so it is replicated, rolled back, restored and recovered with the log.

Memory: at most 1,024 tokens and 512 KiB (``vlsn.limits``).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from repl.auth.roles import TOKEN_ROLES
from repl.credentials.bearer import SCHEME as SCHEME
from repl.credentials.bearer import Secret as Secret
from repl.credentials.bearer import parse as parse
from vlsn.errors import BadArgument, WrongVersion
from vlsn.levels import TOKENS
from vlsn.limits import KIB
from vlsn.seams import Random
from vlsn.state.small_state import TOKEN_PREFIX, Kept, decoded, under

KEYS_BYTES_MAX: Final = 512
NAMES_BYTES_MAX: Final = 128
URI_BYTES_MAX: Final = KIB
TITLE_BYTES_MAX: Final = 256
RATE_MAX: Final = 1 << 40
SECRET_BYTES: Final = 32
_ID_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz0123456789"
_ID_LENGTH: Final = 8
TOKEN_ID: Final = "^[a-z0-9]{8}$"
"""The pattern of a token's id."""
_ID = re.compile(r"[a-z0-9]{8}\Z", re.ASCII)
_HASH = re.compile(r"[0-9a-f]{64}\Z", re.ASCII)
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]{1,1000}\Z", re.ASCII)


class TokenRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The rights of a token, as the log holds them. Either ``sha256`` or ``uri`` names its user."""

    roles: tuple[str, ...]
    sha256: str = ""
    """The SHA-256 of the secret, 64 hex digits."""
    uri: str = ""
    keys: str = ""
    """The prefix of the keys that may be appended; "" for any key, and none."""
    names: str = ""
    """The prefix of the consumers, sinks and destinations that may be changed or consumed."""
    bytes_per_s: Annotated[int, Meta(ge=0, le=RATE_MAX)] = 0
    """The bytes that may be appended in a second; 0 for no limit."""
    appends_per_s: Annotated[int, Meta(ge=0, le=RATE_MAX)] = 0
    """The appends in a second; 0 for no limit."""
    expires_us: Annotated[int, Meta(ge=0, lt=1 << 62)] = 0
    """When the token ends, in µs since the epoch; 0 for never."""
    title: str = ""
    by: str = ""
    """The maker: a token's ID, ``key:ID`` of the group's key, or ``anonymous``."""

    def check(self) -> None:
        """Raises ``BadArgument`` for a record that no token can have."""
        unknown = [role for role in self.roles if role not in TOKEN_ROLES]
        if unknown or not self.roles or len(set(self.roles)) < len(self.roles):
            raise BadArgument(f"roles: {', '.join(self.roles)[:100]!r}: one or more of {', '.join(TOKEN_ROLES)}")
        if bool(self.sha256) == bool(self.uri):
            raise BadArgument("sha256, uri: a token has one of the two")
        if self.sha256 and not _HASH.match(self.sha256):
            raise BadArgument(f"sha256: {self.sha256[:80]!r} is not 64 hex digits")
        if self.uri and not _URI.match(self.uri):
            raise BadArgument(f"uri: {self.uri[:80]!r} is no URI")
        for name, most in (("keys", KEYS_BYTES_MAX), ("names", NAMES_BYTES_MAX), ("title", TITLE_BYTES_MAX)):
            if len(getattr(self, name).encode("utf-8", "surrogatepass")) > most:
                raise BadArgument(f"{name}: more than {most} bytes")

    @property
    def proof(self) -> str:
        """The proof that a client shows: the hash of its secret, or its certificate's URI."""
        return self.sha256 or self.uri

    def expired(self, now_us: int) -> bool:
        return 0 < self.expires_us <= now_us


def new_secret(random: Random) -> Secret:
    """Makes a token of 256 random bits."""
    number = random.u64()
    letters = [_ID_LETTERS[number // len(_ID_LETTERS) ** at % len(_ID_LETTERS)] for at in range(_ID_LENGTH)]
    bits = b"".join(random.u64().to_bytes(8, "big") for _ in range(SECRET_BYTES // 8))
    return Secret("".join(letters), base64.urlsafe_b64encode(bits).rstrip(b"=").decode())


def key_of(id: str) -> str:
    """Returns the name of token ``id`` in the small state. Raises ``BadArgument`` for a text that is no ID."""
    if not _ID.match(id):
        raise BadArgument(f"{id[:40]!r} is no ID of a token: 8 of a–z 0–9")
    return TOKEN_PREFIX + id


_decoder = msgspec.json.Decoder(TokenRecord)


def record_of(kept: Kept | None) -> TokenRecord | None:
    """Reads a token. Returns None if the value is missing, or is not that of a token."""
    record = decoded(kept, _decoder)
    if record is None:
        return None
    try:
        record.check()
    except BadArgument:
        return None
    return record


def records_in(kept: Mapping[str, Kept]) -> dict[str, TokenRecord]:
    """Returns all tokens by their IDs, in their order."""
    return under(kept, TOKEN_PREFIX, record_of)


def check_level(level: int) -> None:
    """Checks that a group of ``level`` has tokens, since earlier binaries would count their share differently. Raises
    ``WrongVersion``."""
    if level < TOKENS:
        raise WrongVersion(
            f"the group is at level {level}, which has no tokens; they come with level {TOKENS}: "
            "`vlsnlog group upgrade`"
        )
