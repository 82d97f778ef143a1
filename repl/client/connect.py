"""``connect`` makes a client.

    async with connect("http://127.0.0.1:7701,http://127.0.0.1:7702") as log:
        vlsn = await log.append(b"value", key=b"k")

The URLs need not include the master's URL. The client asks any node which node is the master, and asks again after
the master is lost.
"""

from __future__ import annotations

from typing import Any, Literal, overload

from repl.api import Acks
from repl.client.client import Client as Client
from repl.client.client import acks_of as acks_of
from repl.client.client import real_network as real_network
from repl.client.codec import CodecName, codec_of
from repl.credentials.bearer import Bearer
from repl.credentials.urls import split_urls
from repl.tls_files import TlsFiles
from repl.web.types import Network
from vlsn.durability import GivenDurability, group_durability
from vlsn.errors import BadArgument
from vlsn.seams import Buffer


@overload
def connect(
    url: str,
    *,
    acks: Acks | str = ...,
    timeout_s: float = ...,
    exactly_once: bool = ...,
    durability: GivenDurability | None = ...,
    codec: Literal["bytes"] = ...,
    network: Network | None = ...,
    tls: TlsFiles | None = ...,
    token: str | None = ...,
    token_file: str | None = ...,
) -> Client[Buffer]: ...
@overload
def connect(
    url: str,
    *,
    acks: Acks | str = ...,
    timeout_s: float = ...,
    exactly_once: bool = ...,
    durability: GivenDurability | None = ...,
    codec: Literal["utf8"],
    network: Network | None = ...,
    tls: TlsFiles | None = ...,
    token: str | None = ...,
    token_file: str | None = ...,
) -> Client[str]: ...
@overload
def connect(
    url: str,
    *,
    acks: Acks | str = ...,
    timeout_s: float = ...,
    exactly_once: bool = ...,
    durability: GivenDurability | None = ...,
    codec: Literal["json"],
    network: Network | None = ...,
    tls: TlsFiles | None = ...,
    token: str | None = ...,
    token_file: str | None = ...,
) -> Client[Any]: ...
def connect(
    url: str,
    *,
    acks: Acks | str = Acks.MAJORITY,
    timeout_s: float = 10.0,
    exactly_once: bool = False,
    durability: GivenDurability | None = None,
    codec: CodecName = "bytes",
    network: Network | None = None,
    tls: TlsFiles | None = None,
    token: str | None = None,
    token_file: str | None = None,
) -> Client[Any]:
    """Makes a client of the group that ``url`` names. ``url`` has one or more ``http://HOST:PORT`` or
    ``https://HOST:PORT``, separated by commas.

    ``acks`` is ``none``, ``majority`` or ``all``. ``timeout_s`` is each append's deadline in seconds. ``durability``
    is the durability at which appends are answered, as for ``append_batch``; the default is the group's setting.
    ``codec`` is the type of the appended values: ``bytes``, ``utf8`` (str) or ``json``. A reader decodes an entry
    with ``text()`` or ``json()``.

    With ``exactly_once`` the client sends an append again if no answer came. The log takes the append once, whatever
    connections and masters are lost. ``OutcomeUnknown`` then means that no answer came before the deadline, or before
    the client was closed. Appends keep their order even when they are sent again. A log remembers the latest 65,536
    exactly-once clients (the group's setting ``producers``). A client that was forgotten continues under a new producer
    id.

    ``tls`` names the PEM files for URLs of ``https://``: the trusted authorities, and the client's certificate and
    key if it has them. By default the environment variables ``VLSNLOG_TLS_CA``, ``VLSNLOG_TLS_CERT`` and
    ``VLSNLOG_TLS_KEY`` name the files, or the system's authorities are trusted.

    ``token`` is the client's token, ``vlt_ID_SECRET``. Or ``token_file`` names a file that holds it, of mode 0600 or
    0400. The file is read again when a node refuses the token, so a new one needs no restart. By default the token is
    that of ``VLSNLOG_TOKEN`` or ``VLSNLOG_TOKEN_FILE``; ``token=""`` is for none. A token is sent over https or to this
    machine's loopback only.

    ``connect`` itself opens no connection; ``async with`` does. Raises ``BadArgument``.
    """
    policy = acks_of(acks)
    if not 0 < timeout_s <= 3600:
        raise BadArgument(f"timeout_s: {timeout_s} is out of range; it must be above 0 and at most 3600")
    urls, bearer = split_urls(url), Bearer.of(token, token_file)
    if bearer is not None:
        bearer.check(urls)
    return Client(
        urls,
        acks=policy,
        timeout_s=timeout_s,
        exactly_once=exactly_once,
        network=network,
        tls=tls,
        bearer=bearer,
        codec=codec_of(codec),
        durability=None if durability is None else group_durability(durability),
    )
