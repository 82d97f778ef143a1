"""A client's token: its text, where it comes from, and where it may be sent.

    token=, VLSNLOG_TOKEN              vlt_ID_SECRET
    token_file=, VLSNLOG_TOKEN_FILE    a file of mode 0600 or 0400 that holds it; read again after a refusal
                                            │
    Authorization: Bearer vlt_ID_SECRET  ◄──┘   over https, or to this machine's loopback

The secret is in no argument of a command, URL, error or ``repr``. A text that is no token is refused before any call.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, Protocol
from urllib.parse import urlsplit

from repl.credentials.loopback import is_loopback
from vlsn.errors import BadArgument

VARIABLE: Final = "VLSNLOG_TOKEN"
FILE_VARIABLE: Final = "VLSNLOG_TOKEN_FILE"
HEADER: Final = "Authorization"
SCHEME: Final = "Bearer "
FILE_BYTES_MAX: Final = 4_096
_TOKEN: Final = re.compile(r"vlt_([a-z0-9]{8})_([A-Za-z0-9_-]{43})\Z", re.ASCII)
_FORM: Final = "vlt_ID_SECRET"


class Hashed(Protocol):
    """A token as the log holds it."""

    @property
    def sha256(self) -> str:
        """The SHA-256 of the secret, 64 hex digits; empty for none."""
        ...


class Secret(NamedTuple):
    """A token as its client has it."""

    id: str
    secret: str

    def __repr__(self) -> str:
        return f"Secret({self.id})"

    @property
    def text(self) -> str:
        return f"vlt_{self.id}_{self.secret}"

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.secret.encode()).hexdigest()

    def opens(self, record: Hashed) -> bool:
        """Says whether this is the secret of ``record``, in a time that does not depend on it."""
        return bool(record.sha256) and hmac.compare_digest(self.sha256, record.sha256)


def parse(text: str) -> Secret | None:
    """Reads a token. Returns None for any other text."""
    match = _TOKEN.match(text)
    return Secret(match[1], match[2]) if match is not None else None


class Bearer:
    """The token that a client sends. One of a file is read again by ``renewed``."""

    __slots__ = ("_file", "_header", "_id")

    def __init__(self, secret: Secret, file: str = "") -> None:
        self._file = file
        self._take(secret)

    def __repr__(self) -> str:
        return f"Bearer({self._id})"

    @classmethod
    def of(
        cls, token: str | None = None, token_file: str | None = None, environment: Mapping[str, str] | None = None
    ) -> Bearer | None:
        """Makes the bearer of ``token``, or of the first token in ``token_file``. If both are None, takes the token
        that the environment names. Returns None without a token; an empty ``token`` stands for none. Raises
        ``BadArgument``, which never shows the secret."""
        names = ("token", "token_file")
        if token is None and token_file is None:
            said = os.environ if environment is None else environment
            names = (VARIABLE, FILE_VARIABLE)
            token, token_file = (said.get(name) or None for name in names)
        if token is not None and token_file is not None:
            raise BadArgument(f"{names[0]}, {names[1]}: both are given; name the token by one of them")
        if token_file is not None:
            path = os.fspath(token_file)
            return cls(_read(names[1], path), os.path.abspath(path))
        if not token:
            return None
        secret = parse(token.strip())
        if secret is None:
            raise BadArgument(f"{names[0]}: is no token, which is {_FORM}")
        return cls(secret)

    def header(self, url: str) -> str:
        """Returns the value of ``HEADER`` for a call of ``url``. Raises ``BadArgument`` for a URL that would show the
        token to others."""
        if not _is_private(url[: url.find("/", 8)] if url.find("/", 8) > 0 else url):
            raise BadArgument(
                f"{url.partition('?')[0][:200]}: a token is sent over https, or to this machine's loopback; write the "
                "URL as https://HOST:PORT"
            )
        return self._header

    def check(self, urls: Sequence[str]) -> None:
        """Checks that the token may be sent to ``urls``. Raises ``BadArgument``."""
        for url in urls:
            self.header(url)

    def renewed(self, refused: str) -> bool:
        """Reads the file again after the header ``refused`` was refused. Says whether there is another token by now.
        Raises ``BadArgument`` if the file cannot be used."""
        if refused != self._header:
            return True
        if self._file:
            self._take(_read("token_file", self._file))
        return refused != self._header

    def _take(self, secret: Secret) -> None:
        self._id, self._header = secret.id, SCHEME + secret.text


@lru_cache(maxsize=1024)
def _is_private(origin: str) -> bool:
    """Says whether nobody but the server at ``origin`` reads what is sent there."""
    try:
        parts = urlsplit(origin)
        return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    except ValueError:
        return False


def forget() -> None:
    """Removes the environment's token from this process, whose calls are of a group of its own."""
    for name in (VARIABLE, FILE_VARIABLE):
        os.environ.pop(name, None)


def check_path(name: str, path: str) -> None:
    """Raises ``BadArgument`` for a token in the place of its file's path, which errors would show."""
    if parse(os.path.basename(path).strip()) is not None:
        raise BadArgument(f"{name}: is a token itself; write it to a file of mode 0600, and name the file")


def _read(name: str, path: str) -> Secret:
    """Reads the token in the file at ``path``. Raises ``BadArgument`` if the file is missing, open to others, or holds
    something else."""
    check_path(name, path)
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # the open of a pipe would wait
        try:
            mode = os.fstat(file).st_mode
            data = os.read(file, FILE_BYTES_MAX + 1) if stat.S_ISREG(mode) else b""
        finally:
            os.close(file)
    except (OSError, ValueError) as error:
        raise BadArgument(f"{name}: {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_IMODE(mode) & 0o077 and stat.S_ISREG(mode):
        raise BadArgument(
            f"{name}: {path} has mode {stat.S_IMODE(mode):04o}, so others can use the token; run: chmod 600 {path}"
        )
    secret = parse(data.decode("ascii", "replace").strip()) if len(data) <= FILE_BYTES_MAX else None
    if secret is None:
        raise BadArgument(f"{name}: {path} holds no token, which is {_FORM}")
    return secret
