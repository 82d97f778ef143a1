"""Certificates for TLS: a group's authority, and what it signs for nodes and clients.

    make_authority(DIR)      DIR/ca.pem, DIR/ca.key
    make_for(NAME, DIR, …)   DIR/NAME.pem, DIR/NAME.key

Keys are EC P-256. Files have the mode 0600, and no file is replaced.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vlsn.errors import BadArgument

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

CA: Final = "ca"
CA_DAYS: Final = 3_650
DAYS: Final = 365
HOSTS: Final = ("localhost", "127.0.0.1", "::1")
BEFORE: Final = timedelta(minutes=5)
"""Certificates are valid from this long ago on, because the clocks of machines differ."""
MODE: Final = 0o600


def make_authority(directory: Path, days: int = CA_DAYS) -> Path:
    """Makes DIR/ca.pem and DIR/ca.key. Returns the certificate's path. Raises ``BadArgument``."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    key = _new_key()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "vlsnlog CA")])
    made = (
        _builder(name, name, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _write(directory, CA, made, key)


def make_for(
    name: str, directory: Path, authority: Path, uri: str, hosts: Sequence[str], days: int = DAYS, *, serves: bool
) -> Path:
    """Makes DIR/NAME.pem and DIR/NAME.key, signed by the authority in the directory ``authority``. ``uri`` names the
    holder, ``hosts`` are its DNS names or addresses; a certificate that ``serves`` is good for a listener, too. Returns
    the certificate's path. Raises ``BadArgument``."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID

    if name == CA:
        raise BadArgument(f"{CA}: is the authority's file; choose another name")
    issuer, signer = _authority(authority)
    key = _new_key()
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if serves:
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri), *map(_host, hosts)]
    made = (
        _builder(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]), issuer.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    return _write(directory, name, made, key)


def _host(text: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        pass
    try:
        return x509.DNSName(text)
    except ValueError:
        raise BadArgument(f"host: {text[:80]!r} is neither a host name nor an address") from None


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _builder(subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BEFORE)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _authority(directory: Path) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    """Reads the authority's certificate and key. Raises ``BadArgument``."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        issuer = x509.load_pem_x509_certificate((directory / f"{CA}.pem").read_bytes())
        key = load_pem_private_key((directory / f"{CA}.key").read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        said = getattr(error, "strerror", None) or "they cannot be read as a certificate and its key"
        raise BadArgument(f"{directory}: {CA}.pem, {CA}.key: {said}; `vlsnlog certs ca DIR` makes them") from None
    if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != issuer.public_key():
        raise BadArgument(f"{directory}: {CA}.key is not the key of {CA}.pem")
    return issuer, key


def _write(directory: Path, name: str, made: x509.Certificate, key: EllipticCurvePrivateKey) -> Path:
    """Writes both files, synced. Returns the certificate's path. Raises ``BadArgument`` if one of them is there."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    files = {
        directory / f"{name}.key": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        directory / f"{name}.pem": made.public_bytes(Encoding.PEM),
    }
    for path in files:
        if path.exists() or path.is_symlink():
            raise BadArgument(f"{path}: is there already; move it away, or choose another directory")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write_new(files)
    return directory / f"{name}.pem"


def _write_new(files: Mapping[Path, bytes]) -> None:
    for path, data in files.items():
        try:
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, MODE)
        except FileExistsError:
            raise BadArgument(f"{path}: is there already; move it away, or choose another directory") from None
        with os.fdopen(number, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    directory = os.open(next(iter(files)).parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
