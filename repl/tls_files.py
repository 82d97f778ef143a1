"""The PEM files of TLS, and contexts made from them. A node uses the contexts in ``repl.net.tls``; an audit uses them
for its calls."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from vlsn.errors import BadArgument

C = TypeVar("C", bound=ssl.SSLContext)
_FILE_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files. ``cert`` may contain a chain, and ``ca`` several authorities. An empty ``cert`` means no
    certificate; an empty ``ca`` means the system's authorities."""

    ca: str = ""
    cert: str = ""
    key: str = ""

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] | None = None) -> TlsFiles:
        """Reads the paths from ``VLSNLOG_TLS_CA``, ``VLSNLOG_TLS_CERT`` and ``VLSNLOG_TLS_KEY``."""
        said = os.environ if environment is None else environment
        return cls(*(said.get(f"VLSNLOG_TLS_{name}", "") for name in ("CA", "CERT", "KEY")))

    def stamp(self) -> tuple[object, ...]:
        """Returns a value that changes when one of the files is replaced or written. A missing file counts as None."""
        found: list[object] = []
        for path in (self.ca, self.cert, self.key):
            try:
                stat = os.stat(path) if path else None
            except OSError:
                stat = None
            found.append(stat and (stat.st_ino, stat.st_dev, stat.st_size, stat.st_mtime_ns))
        return tuple(found)


def calling(context: C, files: TlsFiles) -> C:
    """Configures ``context`` for a client: the certificate chain and the host name of the server are verified. Raises
    ``BadArgument``."""
    restrict(context)
    if files.ca:
        trust(context, files.ca)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if files.cert or files.key:
        show(context, files)
    return context


def restrict(context: ssl.SSLContext) -> None:
    """Allows only TLS 1.2 and later."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION


def trust(context: ssl.SSLContext, path: str) -> None:
    """Loads the trusted authorities from a file. Raises ``BadArgument``."""
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ValueError) as error:
        raise BadArgument(f"tls_ca: {path}: {_said(error, 'holds no certificates in PEM')}") from None


def show(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Loads this side's certificate and its key. Raises ``BadArgument``."""
    for name, path in (("tls_cert", files.cert), ("tls_key", files.key)):
        if not path:
            raise BadArgument(f"{name}: not given; a certificate and its key are named together")
        try:
            if os.stat(path).st_size > _FILE_BYTES_MAX:
                raise BadArgument(f"{name}: {path}: has more than {_FILE_BYTES_MAX} bytes, and is no PEM file of ours")
            os.close(os.open(path, os.O_RDONLY))
        except OSError as error:
            raise BadArgument(f"{name}: {path}: {_said(error, 'cannot be read')}") from None
    try:
        # without a password argument, OpenSSL would ask for it on the terminal
        context.load_cert_chain(files.cert, files.key, password=b"")
    except (OSError, ValueError) as error:
        said = _said(error, "they are no certificate in PEM and its key without a password")
        raise BadArgument(f"tls_cert, tls_key: {files.cert}, {files.key}: {said}") from None


def _said(error: Exception, otherwise: str) -> str:
    if isinstance(error, ssl.SSLError) or not isinstance(error, OSError):
        reason = getattr(error, "reason", None)
        return f"{otherwise} ({reason})" if reason else otherwise
    return error.strerror or otherwise
