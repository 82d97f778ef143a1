"""The group's key and the TLS files of a run: an operator's copies, and those of each node.

    SECRETS/operator/group.key               changed by `vlsnlog key`, then brought to every node
    SECRETS/operator/authority-2/ca.pem      of `vlsnlog certs ca`
    SECRETS/operator/issued-5/n1.pem         of `vlsnlog certs node`
    SECRETS/n1/{group.key,node.pem,node.key,ca.pem}
    SECRETS/clients.pem                      the authorities of the harness and its commands

Files are brought to one node after the other. A node that is stopped gets what it missed before it starts again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final
from urllib.parse import urlsplit

from harness.group.nodes import Group
from harness.orders import TLS_CA, command
from repl.cluster import KEY_FILE
from repl.config import DEFAULT_GROUP

OFF, ALLOW, REQUIRE = "off", "allow", "require"
CERTIFICATE, PRIVATE_KEY, AUTHORITIES = "node.pem", "node.key", "ca.pem"
PROBE: Final = "probe"
STAGGER_S: Final = 0.5
"""The most seconds between two nodes that get the same files."""
Files = Mapping[str, bytes]


class CommandFailed(Exception):
    """A command that must succeed has failed."""


class Credentials:
    """The files of one group, whose nodes have not been started yet."""

    def __init__(self, group: Group, directory: Path, chance: Random) -> None:
        self.key_file = directory / "operator" / KEY_FILE
        self.missed = 0
        """Files that stopped nodes got before their next start."""
        self._group = group
        self._directory = directory
        self._chance = chance
        self._wanted: dict[str, dict[str, bytes]] = {name: {} for name in group.names}
        self._has: dict[str, dict[str, bytes]] = {name: {} for name in group.names}
        self._authorities: list[Path] = []
        self._issued = 0
        group.starting = self._complete
        self.key_file.parent.mkdir(parents=True)
        (group.cluster.directory / KEY_FILE).rename(self.key_file)
        for name in group.names:
            (directory / name).mkdir()
            text = group.node(name).config_path.read_text()
            own = directory / name / KEY_FILE
            group.node(name).config_path.write_text(text.replace(f'"../{KEY_FILE}"', f'"{own}"'))
            group.node(name).environment[TLS_CA] = ""  # it is for the harness, and is a node's setting too
            self._wanted[name][KEY_FILE] = self.key_file.read_bytes()

    @property
    def clients(self) -> Path:
        return self._directory / "clients.pem"

    @property
    def authority(self) -> Path:
        """The directory of the newest authority."""
        return self._authorities[-1]

    # What is made.

    async def new_authority(self) -> Path:
        """Makes an authority, with a client's certificate of it as a probe, and returns its directory."""
        made = self._directory / "operator" / f"authority-{len(self._authorities) + 1}"
        await _done("certs", "ca", str(made))
        await _done("certs", "client", PROBE, str(made), "--ca", str(made))
        self._authorities.append(made)
        return made

    async def issue(self) -> dict[str, Files]:
        """Makes a certificate for every node by the newest authority."""
        self._issued += 1
        made = self._directory / "operator" / f"issued-{self._issued}"
        for name in self._group.names:
            host = urlsplit(self._group.member_urls[name]).hostname or ""
            by = ("--ca", str(self.authority), "--group", DEFAULT_GROUP, "--host", host)
            await _done("certs", "node", name, str(made), *by)
        return {
            name: {
                CERTIFICATE: (made / f"{name}.pem").read_bytes(),
                PRIVATE_KEY: (made / f"{name}.key").read_bytes(),
            }
            for name in self._group.names
        }

    def trust(self, *authorities: Path) -> Files:
        """Returns the file of nodes that trust these authorities."""
        return {AUTHORITIES: _joined(*authorities)}

    def clients_trust(self, *authorities: Path) -> None:
        """Lets clients trust these authorities, once they look."""
        _write(self.clients, _joined(*authorities))

    # What is brought.

    async def bring(self, files: Mapping[str, Files]) -> None:
        """Brings files to one node after the other, in a drawn order."""
        for name in self._chance.sample(list(files), len(files)):
            self._wanted[name] |= files[name]
            if self._group.running(name):
                self._write(name)
            await asyncio.sleep(self._chance.uniform(0.0, STAGGER_S))

    async def bring_all(self, files: Files) -> None:
        """Brings the same files to every node."""
        await self.bring(dict.fromkeys(self._group.names, files))

    def speak(self, name: str, tls: str) -> None:
        """Sets how the node speaks from its next start on."""
        own = self._directory / name
        files = {"tls_cert": CERTIFICATE, "tls_key": PRIVATE_KEY, "tls_ca": AUTHORITIES}
        path = self._group.node(name).config_path
        kept = [line for line in path.read_text().split("\n") if not line.startswith("tls")]
        added = [f'tls = "{tls}"', *(f'{setting} = "{own / file}"' for setting, file in files.items())]
        new = path.with_suffix(".new")
        new.write_text("\n".join([*added, *kept]))
        new.rename(path)

    def certificate(self, name: str) -> bytes:
        """Returns the newest certificate of a node, in PEM."""
        return self._wanted[name][CERTIFICATE]

    def _complete(self, name: str) -> None:
        """Writes what a node has missed."""
        self.missed += sum(self._has[name].get(each) not in (None, data) for each, data in self._wanted[name].items())
        self._write(name)

    def _write(self, name: str) -> None:
        for each, data in self._wanted[name].items():
            if self._has[name].get(each) != data:
                _write(self._directory / name / each, data)
                self._has[name][each] = data


@contextmanager
def trusting(path: Path) -> Iterator[None]:
    """Lets this process and its commands trust the authorities in ``path``, as long as it lasts."""
    before = os.environ.get(TLS_CA)
    os.environ[TLS_CA] = str(path)
    try:
        yield
    finally:
        if before is None:
            del os.environ[TLS_CA]
        else:
            os.environ[TLS_CA] = before


def _joined(*authorities: Path) -> bytes:
    return b"".join((each / "ca.pem").read_bytes() for each in authorities)


def _write(path: Path, data: bytes) -> None:
    """Replaces a file, which belongs to its owner alone."""
    new = path.with_name(f"{path.name}.new")
    number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(number, "wb") as file:
        file.write(data)
    new.rename(path)


async def _done(*arguments: str) -> None:
    status, found = await command(*arguments)
    if status != 0:
        raise CommandFailed(f"vlsnlog {' '.join(arguments)}: {found}")
