"""``vlsnlog certs``: a certificate authority, and certificates of nodes and clients for TLS.

    vlsnlog certs ca certs                                    certs/ca.pem, certs/ca.key
    vlsnlog certs node n1 certs --ca certs --group orders     certs/n1.pem, certs/n1.key
    vlsnlog certs client app certs --ca certs                 certs/app.pem, certs/app.key

A node's certificate names the node by the URI ``vlsnlog:GROUP/NODE``, and its hosts as DNS names or addresses. Keys are
EC P-256. Files have the mode 0600, and no file is replaced. Everything can be made by openssl, too (docs/operating.md).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from repl.cli.options import Command, NameType
from repl.cli.options import Commands as Grouped
from repl.config import DEFAULT_GROUP, check_name
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

_DIRECTORY = click.argument("directory", type=click.Path(file_okay=False, path_type=Path), metavar="DIR")
_NAME = click.argument("name", type=NameType())
_CA = click.option(
    "--ca",
    "authority",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of the authority, from `vlsnlog certs ca DIR`.",
)
_GROUP = click.option("--group", default=DEFAULT_GROUP, show_default=True, help="Name of the group.")
_DAYS = click.option(
    "--days", type=click.IntRange(1, 36_500), default=DAYS, show_default=True, help="Days it is valid."
)


@click.group(cls=Grouped)
def certs() -> None:
    """Make certificates for TLS: an authority, then one for each node, and for clients that want one."""


@certs.command(cls=Command, name="ca")
@_DIRECTORY
@click.option("--days", type=click.IntRange(1, 36_500), default=CA_DAYS, show_default=True, help="Days it is valid.")
def ca(directory: Path, days: int) -> None:
    """Make a certificate authority: DIR/ca.pem, which all nodes and clients need, and DIR/ca.key, which stays here."""
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
    _write(directory, CA, made, key)


@certs.command(cls=Command, name="node")
@_NAME
@_DIRECTORY
@_CA
@_GROUP
@click.option("--host", "hosts", multiple=True, help="A host name or address of its URL; repeat. [default: loopback]")
@_DAYS
def node(name: str, directory: Path, authority: Path, group: str, hosts: Sequence[str], days: int) -> None:
    """Make the certificate of the node NAME: DIR/NAME.pem and DIR/NAME.key."""
    from repl.net.tls import node_uri

    check_name("group", group)
    _issue(directory, name, authority, node_uri(group, name), hosts or HOSTS, days, serves=True)


@certs.command(cls=Command, name="client")
@_NAME
@_DIRECTORY
@_CA
@_GROUP
@_DAYS
def client(name: str, directory: Path, authority: Path, group: str, days: int) -> None:
    """Make the certificate of a client: DIR/NAME.pem and DIR/NAME.key."""
    from repl.net.tls import client_uri

    check_name("group", group)
    _issue(directory, name, authority, client_uri(group, name), (), days, serves=False)


def _issue(
    directory: Path, name: str, authority: Path, uri: str, hosts: Sequence[str], days: int, *, serves: bool
) -> None:
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
    _write(directory, name, made, key)


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


def _write(directory: Path, name: str, made: x509.Certificate, key: EllipticCurvePrivateKey) -> None:
    """Writes both files, synced. Raises ``BadArgument`` if one of them is there."""
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
    click.echo(directory / f"{name}.pem")


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
