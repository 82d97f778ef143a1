"""``vlsnlog certs``: a certificate authority, and certificates of nodes and clients for TLS.

    vlsnlog certs ca certs                                    certs/ca.pem, certs/ca.key
    vlsnlog certs node n1 certs --ca certs --group orders     certs/n1.pem, certs/n1.key
    vlsnlog certs client app certs --ca certs                 certs/app.pem, certs/app.key

A node's certificate names the node by the URI ``vlsnlog:GROUP/NODE``, and its hosts as DNS names or addresses.
Everything can be made by openssl, too (docs/access.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from repl.cli.options import Command, NameType
from repl.cli.options import Commands as Grouped
from repl.config import DEFAULT_GROUP, check_name
from repl.net.certificates import CA_DAYS, DAYS, HOSTS, make_authority, make_for

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
    click.echo(make_authority(directory, days))


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
    click.echo(make_for(name, directory, authority, node_uri(group, name), hosts or HOSTS, days, serves=True))


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
    click.echo(make_for(name, directory, authority, client_uri(group, name), (), days, serves=False))
