"""Orders of commands to nodes, signed with the group's key.

    key      --group-key FILE ─► VLSNLOG_GROUP_KEY ─► on loopback the file that the node itself names (GET /v1/key)
    order    GET /v1/key: group, keys ─► signed call (``repl/auth/peer_calls.py``) ─► only a signed answer counts
    no key   the order goes unsigned, with the client's token if there is one (``repl.client.bearing``)

1. A key that is named must sign: an order goes to no node that has no key, or does not accept this one.
2. A file that a node names is used if this user alone can read it, and its keys are the node's. The key itself is
   never sent. An order is signed for the URL's host and port, so no other member takes it.
3. Questions go unsigned first. They are signed if the node answers 401.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from repl.auth.addresses import place_of
from repl.auth.keyring import Keyring
from repl.auth.peer_calls import PeerCalls
from repl.auth.sessions import CLI
from repl.auth.trust import Trust
from repl.config import ENVIRONMENT_PREFIX
from repl.credentials.loopback import is_loopback
from repl.web.types import Handler, Keeps, Listener, Network, Quick, Response
from vlsn.errors import BadArgument, Unauthorized
from vlsn.format.records import JSON_FAULTS
from vlsn.real.clock import SystemRandom
from vlsn.real.disk import PosixDisk
from vlsn.seams import Buffer, Channel

GROUP_KEY: Final = ENVIRONMENT_PREFIX + "GROUP_KEY"
KEY_PATH: Final = "/v1/key"
_ORDERS: Final = ("/v1/admin/", "/v1/cdc/")
_UNAUTHORIZED: Final = 401


class _Keys(msgspec.Struct):
    """A node's answer to ``GET /v1/key``."""

    group: str
    accepts: list[str]
    file: str | None = None


class SigningNetwork:
    """The network of a command."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._signing: dict[str, PeerCalls | None] = {}
        """The signing calls for each URL that was asked for its keys."""

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Buffer = b"",
        timeout_s: float,
        peer: str = "",
    ) -> Response:
        """Makes a request as ``Network.request`` does, signed if it is an order or else refused. Raises
        ``BadArgument`` and ``Unauthorized`` for a key that cannot sign."""
        more: dict[str, Any] = {"body": body, "timeout_s": timeout_s}
        if not urlsplit(url).path.startswith(_ORDERS):
            answer = await self._network.request(method, url, headers=headers, **more, peer=peer)
            if answer.status != _UNAUTHORIZED:
                return answer
            calls = await self._calls(url, timeout_s)
            if calls is None:
                return answer
        else:
            calls = await self._calls(url, timeout_s)
            if calls is None:
                return await self._network.request(method, url, headers=headers, **more, peer=peer)
        return await calls.request(place_of(url), method, url, headers=headers, **more)

    async def _calls(self, url: str, timeout_s: float) -> PeerCalls | None:
        """Returns the signing calls to ``url``, or None without a key. Raises ``BadArgument``, ``Unauthorized``,
        ``Unreachable``."""
        base = "{0.scheme}://{0.netloc}".format(urlsplit(url))
        if base not in self._signing:
            named = os.environ.get(GROUP_KEY)
            loopback = is_loopback(urlsplit(url).hostname or "")
            keys = await self._keys_of(base, timeout_s) if named or loopback else None
            self._signing[base] = None if keys is None else self._with(keys, named, base)
        return self._signing[base]

    async def _keys_of(self, base: str, timeout_s: float) -> _Keys | None:
        answer = await self._network.request("GET", base + KEY_PATH, timeout_s=timeout_s)
        try:
            return msgspec.json.decode(answer.body, type=_Keys) if answer.status == 200 else _Keys("", [])
        except JSON_FAULTS:
            return _Keys("", [])

    def _with(self, node: _Keys, named: str | None, base: str) -> PeerCalls | None:
        if named:
            found = _keyring(named)
            if not node.accepts:
                raise Unauthorized(f"{base} has no key of a group, so it cannot check what {GROUP_KEY} signs: {named}")
            if not _signs(found, node):
                raise Unauthorized(f"{base} accepts the keys {', '.join(node.accepts)}, and {named} signs with another")
        elif node.file is None:
            return None
        else:
            try:
                found = _keyring(node.file)
            except BadArgument:  # the node of another user: a token may do
                return None
            if not _signs(found, node):
                return None
        process = f"{SystemRandom().u64():016x}"
        return PeerCalls(
            self._network,
            Trust(
                name=CLI,
                group=node.group,
                process=process,
                keyring=found,
                is_signed_only=lambda: True,
                met=lambda name, signed: None,
                is_here=lambda place: False,
                offload=_at_once,
            ),
        )

    async def serve(
        self, host: str, port: int, handler: Handler, *, quick: Quick | None = None, keeps: Keeps | None = None
    ) -> Listener:
        return await self._network.serve(host, port, handler, quick=quick, keeps=keeps)

    async def connect(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        message_bytes_max: int,
        timeout_s: float,
        check: Callable[[Response], None] | None = None,
        peer: str = "",
    ) -> Channel:
        return await self._network.connect(
            url, headers=headers, message_bytes_max=message_bytes_max, timeout_s=timeout_s, check=check, peer=peer
        )

    async def close(self) -> None:
        await self._network.close()


def _keyring(path: str) -> Keyring:
    """Reads a key file. Raises ``BadArgument``."""
    disk = PosixDisk()
    found = Keyring(disk, os.path.abspath(path), lambda name, **fields: None)
    found.load()
    return found


def _signs(found: Keyring, node: _Keys) -> bool:
    return found.keys is not None and found.keys.signing.id in node.accepts


async def _at_once(job: Callable[[], bytes]) -> bytes:
    return job()
