"""The PEM files of TLS, and contexts made from them. ``repl.net.tls`` uses them for a node; audits, for their calls.

Files are looked at and read through the disk seam. OpenSSL itself opens a certificate and its key, too, by
their paths, because Python has no call that loads them from memory.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from vlsn.errors import BadArgument, NoRegularFile
from vlsn.limits import MIB

C = TypeVar("C", bound=ssl.SSLContext)
FILE_BYTES_MAX: Final = 8 * MIB
"""The most bytes of a PEM file; the authorities of a large company may have one."""
LOOK_S: Final = 5.0
"""The seconds between two looks at the files."""
HTTP_MARK: Final = "http/1.1"
"""The protocol name (ALPN) that a client offers."""


class PemFile(Protocol):
    """The part of ``vlsn.seams.File`` that PEM files need."""

    def read(self, offset: int, size: int) -> bytes: ...

    def stamp(self) -> tuple[int, ...]: ...

    def close(self) -> None: ...


class PemDisk(Protocol):
    """The part of ``vlsn.seams.Disk`` that PEM files need."""

    def open(self, path: str) -> PemFile: ...


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


NO_FILES: Final = TlsFiles()


def or_environment(files: TlsFiles) -> TlsFiles:
    """Returns the files with those of the environment where a path is empty."""
    else_ = TlsFiles.of_environment()
    return TlsFiles(files.ca or else_.ca, files.cert or else_.cert, files.key or else_.key)


def check_files(files: TlsFiles, disk: PemDisk) -> None:
    """Reads the files, as a call of https does. Raises ``BadArgument``."""
    client_context(files, disk)


def stamp_of(files: TlsFiles, disk: PemDisk) -> tuple[object, ...]:
    """Returns what changes when a file is replaced or written. A file that cannot be opened has ``None``."""
    return tuple(_stamp(disk, path) for path in (files.ca, files.cert, files.key))


class Authorities:
    """The TLS of a client's calls: ``context`` is current. It verifies chain and host of the other side.

    A context is never changed. After a change of the files, new connections are made in a new context."""

    def __init__(self, files: TlsFiles, disk: PemDisk) -> None:
        """Loads the files. Raises ``BadArgument``."""
        self._files, self._disk = files, disk
        self._stamp = stamp_of(files, disk)
        self.context = client_context(files, disk)

    def look(self) -> None:
        """Loads the files again if they have changed. Keeps what is loaded if they are bad. Never raises."""
        stamp = stamp_of(self._files, self._disk)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        with suppress(BadArgument):
            self.context = client_context(self._files, self._disk)


def client_context(files: TlsFiles, disk: PemDisk) -> ssl.SSLContext:
    """Makes the context of a client's calls to any node. Raises ``BadArgument``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols([HTTP_MARK])
    return calling(context, files, disk)


def tls_failure(error: BaseException) -> ssl.SSLError | None:
    """Returns the failed handshake that a library's error is about, if it is about one."""
    for each in (getattr(error, name, None) for name in ("certificate_error", "os_error", "reason")):
        if isinstance(each, ssl.SSLError):
            return each
    return error if isinstance(error, ssl.SSLError) else None


def lasts(error: ssl.SSLError | None) -> bool:
    """Says whether a handshake that failed so fails again, until somebody changes files or URLs. A connection that just
    ended is no such failure."""
    if error is None or isinstance(error, ssl.SSLCertVerificationError):
        return error is not None
    return error.reason in _NO_TLS or "ALERT" in str(error.reason)


def said_of_tls(error: ssl.SSLError) -> str:
    """Says why a call's handshake failed, and what to look at."""
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = "; is its authority in tls_ca?" if error.__dict__.get("verify_code") in _NOT_TRUSTED else ""
        return f"TLS: certificate verify failed: {refusal_of(error)}{hint}"
    spoken = "; does the port speak TLS?" if error.reason in _NO_TLS else ""
    return f"TLS: {refusal_of(error)}{spoken}"


def refusal_of(error: ssl.SSLError) -> str:
    """Returns why a handshake failed, in words."""
    said = getattr(error, "verify_message", None) or getattr(error, "reason", None)  # one of ours has neither
    return str(said or error.args[-1])


_NOT_TRUSTED: Final = (18, 19, 20, 21)
"""OpenSSL's codes for a chain that ends in no authority of ours."""
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")


def _stamp(disk: PemDisk, path: str) -> tuple[int, ...] | None:
    try:
        file = disk.open(path) if path else None
    except (OSError, NoRegularFile):
        return None
    if file is None:
        return None
    try:
        return file.stamp()
    finally:
        file.close()


def calling(context: C, files: TlsFiles, disk: PemDisk) -> C:
    """Makes ``context`` one of a client: chain and host of the other side are verified. Raises ``BadArgument``."""
    restrict(context)
    if files.ca:
        trust(context, files.ca, disk)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if files.cert or files.key:
        show(context, files, disk)
    return context


def restrict(context: ssl.SSLContext) -> None:
    """Allows only TLS 1.2 and later."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION


def trust(context: ssl.SSLContext, path: str, disk: PemDisk) -> None:
    """Loads authorities. Raises ``BadArgument``."""
    pem = _read("tls_ca", path, disk).decode("ascii", "ignore")  # comments between certificates may have any letters
    try:
        context.load_verify_locations(cadata=pem)
    except (OSError, ValueError) as error:
        raise BadArgument(f"tls_ca: {path}: {_said(error, 'holds no certificates in PEM')}") from None


def show(context: ssl.SSLContext, files: TlsFiles, disk: PemDisk) -> None:
    """Loads the own certificate and its key. Raises ``BadArgument``."""
    for name, path in (("tls_cert", files.cert), ("tls_key", files.key)):
        if not path:
            raise BadArgument(f"{name}: not given; a certificate and its key are named together")
        _read(name, path, disk)
    try:
        # without a password argument, OpenSSL would ask for it on the terminal
        context.load_cert_chain(files.cert, files.key, password=b"")
    except (OSError, ValueError) as error:
        said = _said(error, "they are no certificate in PEM and its key without a password")
        raise BadArgument(f"tls_cert, tls_key: {files.cert}, {files.key}: {said}") from None


def _read(name: str, path: str, disk: PemDisk) -> bytes:
    """Reads a whole PEM file. Raises ``BadArgument``, which never shows its content."""
    try:
        file = disk.open(path)
        try:
            data = file.read(0, FILE_BYTES_MAX + 1)
        finally:
            file.close()
    except NoRegularFile as error:
        raise BadArgument(f"{name}: {error}") from None
    except OSError as error:
        raise BadArgument(f"{name}: {path}: {_said(error, 'cannot be read')}") from None
    if len(data) > FILE_BYTES_MAX:
        raise BadArgument(f"{name}: {path}: has more than {FILE_BYTES_MAX} bytes, and is no PEM file of ours")
    return data


def _said(error: Exception, otherwise: str) -> str:
    if isinstance(error, ssl.SSLError) or not isinstance(error, OSError):
        reason = getattr(error, "reason", None)
        return f"{otherwise} ({reason})" if reason else otherwise
    return error.strerror or otherwise
