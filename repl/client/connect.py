"""``connect``: the way to a client.

    async with connect("http://127.0.0.1:7701,http://127.0.0.1:7702") as log:
        vlsn = await log.append(b"value", key=b"k")

URLs need not name the master: the client asks any node for it, and again after a loss.
"""

from __future__ import annotations

from typing import Any, Literal, overload

from repl.api import Acks
from repl.client.client import Client as Client
from repl.client.client import acks_of as acks_of
from repl.client.client import real_network as real_network
from repl.client.codec import CodecName, codec_of
from repl.config import split_urls
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
) -> Client[Any]:
    """Makes a client of the group that ``url`` names: one or more ``http://HOST:PORT``, separated by commas.

    ``acks``: ``none``, ``majority`` or ``all``; ``timeout_s``: each append's deadline. ``exactly_once``: an append
    without an answer is sent again, and the log takes it once, through any loss of connections and masters.
    ``OutcomeUnknown`` then means that no answer came until the deadline, or until the client was closed. Appends stay
    in their order. A log remembers the latest 65,536 such clients (the group's setting ``producers``). A client that it
    forgot goes on under another name. ``durability``: the durability at which appends are answered, as for
    ``append_batch``; by default the group's setting. ``codec``: the type of the values appended, ``bytes``, ``utf8``
    (str) or ``json``; a reader calls ``text()`` or ``json()`` of an entry. Nothing is opened before ``async with``.
    Raises ``BadArgument``.
    """
    policy = acks_of(acks)
    if not 0 < timeout_s <= 3600:
        raise BadArgument(f"timeout_s: {timeout_s} is out of range; it must be above 0 and at most 3600")
    return Client(
        split_urls(url),
        acks=policy,
        timeout_s=timeout_s,
        exactly_once=exactly_once,
        network=network,
        codec=codec_of(codec),
        durability=None if durability is None else group_durability(durability),
    )
