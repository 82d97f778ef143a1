"""TLS of one process: its certificate and authorities, loaded from files, and loaded again when the files change.

    node's certificate      URI SAN vlsnlog:GROUP/NODE, and the host of its URL as DNS name or address
    member calls member     chain, host, and the URI of the member that is called      else no byte is sent
    member is called        the URIs of the certificate say which members may speak    else 403
    client calls node       chain and host

1. New files are tried by a handshake of the node with itself before they are used. Bad files change nothing
   (``tls.reload-failed``).
2. A context is never changed. After a change of the files, new connections are made in new contexts.
3. If an authority is gone, the connections of older contexts end within ``END_OLD_S`` seconds. Sessions are never
   resumed, so each connection has been verified by the authorities of its own context.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from repl.tls_files import HTTP_MARK, calling, client_context, refusal_of, restrict, show, stamp_of, trust
from repl.tls_files import LOOK_S as LOOK_S
from repl.tls_files import TlsFiles as TlsFiles
from vlsn.errors import BadArgument
from vlsn.real.disk import PosixDisk
from vlsn.seams import Disk

C = TypeVar("C", bound=ssl.SSLContext)

END_OLD_S: Final = 30.0
"""The seconds in which connections end that were made before an authority was removed."""
HANDSHAKE_S: Final = 5.0
PEERS_MAX: Final = 64
"""The most contexts that are kept for members, one for each name."""
PEER_MARK: Final = "vlsnlog-peer"
"""Members offer this protocol name (ALPN), so that their handshakes come before those of clients."""
OFF: Final = "off"
ALLOW: Final = "allow"
REQUIRE: Final = "require"
_SCHEME: Final = "vlsnlog:"


def node_uri(group: str, name: str) -> str:
    """Returns the URI by which a certificate names a member."""
    return f"{_SCHEME}{group}/{name}"


def client_uri(group: str, name: str) -> str:
    """Returns the URI of a client's certificate. It names no member, because a member's name has no ``/``."""
    return f"{_SCHEME}{group}/client/{name}"


@dataclass(frozen=True, slots=True)
class Own:
    """A node, as its certificate must name it; ``host`` is the one of its URL."""

    group: str
    name: str
    host: str


class _Checked(ssl.SSLObject):
    """A connection whose other side must have the URI of its context."""

    def do_handshake(self) -> None:
        super().do_handshake()
        context = self.context
        if isinstance(context, PeerContext) and context.uri not in uris_of(self.getpeercert()):
            raise ssl.SSLCertVerificationError(f"the certificate does not name {context.uri}")


class PeerContext(ssl.SSLContext):
    """The context of calls to one member. A handshake fails unless the certificate has its ``uri``."""

    uri = ""
    sslobject_class = _Checked


class Loaded:
    """The contexts of one state of the files. Raises ``BadArgument`` if the files cannot be used."""

    def __init__(self, files: TlsFiles, own: Own | None, disk: Disk) -> None:
        self._files = files
        self._disk = disk
        self._own = own
        self._peers: dict[str, PeerContext] = {}
        self.client = client_context(files, disk)
        self.roots = frozenset(self.client.get_ca_certs(binary_form=True))
        self.server: ssl.SSLContext | None = None
        self.not_after_s = 0.0
        """When the node's certificate ends, in seconds since the epoch; 0 without one."""
        if own is not None:
            self.server = self._serving()
            self.not_after_s = self._tried(own, self.server)

    def to(self, peer: str) -> ssl.SSLContext:
        """Returns the context of calls to the member ``peer``, or to any node if ``peer`` is empty."""
        own = self._own
        if not peer or own is None:
            return self.client
        context = self._peers.get(peer)
        if context is None:
            if len(self._peers) >= PEERS_MAX:
                self._peers.clear()
            context = PeerContext(ssl.PROTOCOL_TLS_CLIENT)
            context.uri = node_uri(own.group, peer)
            context.set_alpn_protocols([PEER_MARK, HTTP_MARK])
            self._peers[peer] = calling(context, self._files, self._disk)
        return context

    def contexts(self) -> frozenset[ssl.SSLContext]:
        """Returns all contexts that are in use."""
        served = () if self.server is None else (self.server,)
        return frozenset((self.client, *served, *self._peers.values()))

    def _serving(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        restrict(context)
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        trust(context, self._files.ca, self._disk)
        context.verify_mode = ssl.CERT_OPTIONAL
        show(context, self._files, self._disk)
        return context

    def _tried(self, own: Own, server: ssl.SSLContext) -> float:
        """Makes a handshake of the node with itself, as one member with another. Returns when the certificate ends."""
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        calls = self.to(own.name).wrap_bio(to_client, to_server, server_hostname=own.host)
        answers = server.wrap_bio(to_server, to_client, server_side=True)
        try:
            while not (_advanced(calls) & _advanced(answers)):
                pass
        except ssl.SSLCertVerificationError as error:
            needed = f"the URI {node_uri(own.group, own.name)} and the host {own.host}"
            raise BadArgument(
                f"tls_cert: {self._files.cert}: no member would accept it: {refusal_of(error)}; it needs {needed}, "
                "from an authority in tls_ca; see `vlsnlog certs --help`"
            ) from None
        except ssl.SSLError as error:
            raise BadArgument(f"tls_cert: {self._files.cert}: cannot be used: {refusal_of(error)}") from None
        found = calls.getpeercert()
        assert found is not None
        return float(ssl.cert_time_to_seconds(str(found["notAfter"])))


def uris_of(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Returns the URI SANs of a verified certificate, as ``getpeercert`` describes it."""
    return tuple(value for kind, value in (certificate or {}).get("subjectAltName", ()) if kind == "URI")


def members_of(uris: Collection[str], group: str) -> frozenset[str]:
    """Returns the names of ``group``'s members that a verified certificate with ``uris`` names."""
    prefix = node_uri(group, "")
    return frozenset(uri.removeprefix(prefix) for uri in uris if uri.startswith(prefix))


class Trust:
    """The TLS of this process: ``loaded`` is current. ``event`` receives the names of events and their fields."""

    def __init__(
        self,
        files: TlsFiles,
        *,
        own: Own | None = None,
        event: Callable[..., None] | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Loads the files from ``disk``, by default the real one. Raises ``BadArgument``."""
        self.own = own
        self._disk = PosixDisk() if disk is None else disk
        self._files = files
        self.event = event or (lambda name, **fields: None)
        self._stamp = stamp_of(files, self._disk)
        self.loaded = Loaded(files, own, self._disk)
        self.shrunk: list[Callable[[frozenset[ssl.SSLContext]], None]] = []
        """Is called with the contexts that may go on when an authority is gone."""

    def look(self) -> None:
        """Loads the files again if they have changed. Keeps what is loaded if they are bad. Never raises."""
        stamp = stamp_of(self._files, self._disk)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            loaded = Loaded(self._files, self.own, self._disk)
        except BadArgument as error:
            self.event("tls.reload-failed", why=str(error))
            return
        before, self.loaded = self.loaded, loaded
        gone = len(before.roots - loaded.roots)
        self.event("tls.reloaded", not_after=int(loaded.not_after_s), authorities_gone=gone)
        if gone:
            for each in self.shrunk:
                each(loaded.contexts())

    async def run(self) -> None:
        """Looks at the files until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()


async def end_over(ends: Sequence[Callable[[], None]], *, after_s: float = 0.0) -> None:
    """Calls all of ``ends``, evenly over ``END_OLD_S`` seconds, or all at once ``after_s`` seconds from now."""
    await asyncio.sleep(after_s)
    for end in ends:
        end()
        if not after_s:
            await asyncio.sleep(END_OLD_S / len(ends))


def _advanced(side: ssl.SSLObject) -> bool:
    """Goes on with a handshake. Says whether it is complete."""
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
