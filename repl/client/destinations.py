"""The destinations of a group, as a client uses them. Every call that uses destinations goes to the master.

After a change of master the client repeats a call if a repeat has no further effect. Such calls create a destination
under its uuid, acknowledge, drop or move.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import isfinite
from typing import Any, Final

import msgspec

from repl.api import DestinationChange
from repl.client.answers import decoded, encoded
from repl.client.destination_stream import DestinationStream, Lost
from repl.client.endpoints import Endpoints
from repl.client.master_calls import MasterCalls
from repl.destinations import message_batch
from repl.web import ndjson
from repl.web.types import Network
from vlsn.errors import BadArgument, ChannelClosed, NotMaster, Unreachable
from vlsn.format.arrays import works_for
from vlsn.limits import MIB
from vlsn.state.destination_settings import key_of

PATH: Final = "/v1/destinations"
_WHAT: Final = "destination"
AGAIN_S: Final = 0.1
"""The seconds between the loss of a connection and the next connection."""
OPEN_TRIES: Final = 100
"""The most connections in a row that may be lost before any message of a node has arrived."""
STREAM_BYTES_MAX: Final = 64 * MIB
"""The most bytes of one answer. The answer may have several messages up to this size, or a single larger message."""
Rows = Sequence[tuple[int, int, int, bytes | None, bytes]]
"""The VLSN, attempt, time, key and value of each message."""


class _Listed(msgspec.Struct):
    destinations: list[dict[str, Any]]


class Destinations:
    """The destinations of one group. Each destination is a dict with the fields of the HTTP API's answer."""

    def __init__(self, endpoints: Endpoints, network: Network, *, timeout_s: float) -> None:
        self._calls = MasterCalls(endpoints, network, timeout_s=timeout_s)

    async def list(self) -> list[dict[str, Any]]:
        """Returns all destinations, sorted by name. Raises the same errors as ``Client.append`` if no master
        answers."""
        answer = await self._calls.call("GET", PATH, again=True)
        return decoded(answer, _Listed, _WHAT).destinations

    async def get(self, name: str) -> dict[str, Any]:
        """Returns the destination ``name``. Raises ``NotFound``, ``BadArgument``, and the errors of ``list``."""
        return await self._told("GET", _path(name))

    async def put(self, name: str, **settings: Any) -> dict[str, Any]:
        """Creates or changes a destination; the change is durable on return. ``settings`` may be ``prefix``, ``from_``
        (``"start"``, ``"end"``, a VLSN), ``max_bytes``, ``max_messages``, ``full_policy``, ``ack_timeout_s``,
        ``attempts_max``, ``dead_letter``, ``redelivery_delay_s``, ``redelivery_factor``, ``redelivery_delay_s_max``,
        ``max_out``, ``uuid``. Settings that are left out stay as they are. Raises ``BadArgument``, ``StaleTerm``,
        ``TooLarge``, ``Trimmed``, ``WrongVersion``."""
        given = {"from" if key == "from_" else key: value for key, value in settings.items() if value is not None}
        try:
            msgspec.convert(given, DestinationChange)
        except msgspec.ValidationError as error:
            raise BadArgument(str(error)) from None
        for key, value in given.items():
            if isinstance(value, float):
                _seconds(key, value)
        body = encoded(given)
        return decoded(await self._calls.put(_path(name), body, again=True), dict[str, Any], _WHAT)

    async def drop(self, name: str) -> None:
        """Drops a destination; the change is durable on return. Raises ``NotFound``, and the errors of ``put``."""
        await self._calls.delete(_path(name), again=True)

    async def pause(self, name: str) -> dict[str, Any]:
        """Pauses a destination: no message is delivered until ``resume``. The pause is durable on return. Raises
        ``NotFound``, and the errors of ``put``."""
        return await self._told("POST", f"{_path(name)}/pause", b"{}")

    async def resume(self, name: str) -> dict[str, Any]:
        """Ends a pause: messages are delivered again. Raises the same errors as ``pause``."""
        return await self._told("POST", f"{_path(name)}/resume", b"{}")

    async def retry_dead(self, name: str, vlsns: Sequence[int] | None = None) -> dict[str, Any]:
        """Delivers dead messages again: the messages ``vlsns``, or all that the log still has. If one of ``vlsns``
        is not dead, raises ``NotFound`` and changes nothing. Raises the errors of ``pause``, and ``OutcomeUnknown``."""
        if vlsns is None:
            return await self._told("POST", f"{_path(name)}/retry-dead", b"{}")
        return await self._told("POST", f"{_path(name)}/retry-dead", encoded({"vlsns": [*vlsns]}), again=False)

    async def delete_dead(self, name: str, vlsns: Sequence[int]) -> dict[str, Any]:
        """Deletes the dead messages ``vlsns``, so that they cannot be tried again. The dead-letter entries of the
        messages stay in the log. Raises the same errors as ``retry_dead``."""
        return await self._told("POST", f"{_path(name)}/delete-dead", encoded({"vlsns": [*vlsns]}), again=False)

    async def move(self, name: str, to: int | str) -> dict[str, Any]:
        """Moves the destination to ``to``: a VLSN, ``"start"`` or ``"end"``. Every message from ``to`` on counts as
        unacknowledged. Raises ``Trimmed``, and the errors of ``pause``."""
        return await self._told("POST", f"{_path(name)}/move", encoded({"to": to}))

    async def peek(self, name: str, most: int) -> Rows:
        """Returns the next ``most`` messages that are not acknowledged, without taking them."""
        answer = await self._calls.call("GET", f"{_path(name)}/messages?peek=true&max={most}", again=True)
        return ndjson.decode_messages(bytes(answer.body))

    async def take(self, name: str, most: int, wait_s: float) -> tuple[str, message_batch.Taken]:
        """Takes up to ``most`` messages, and waits ``wait_s`` seconds for the first. Returns the uuid of the
        destination, and the messages. If the answer is lost, its messages are delivered again later."""
        path = f"{_path(name)}/messages?max={most}&wait={wait_s:g}"
        accept = message_batch.CONTENT_TYPE
        answer = await self._calls.call("GET", path, again=True, answer_s=wait_s + 5.0, accept=accept)
        return answer.headers.get(message_batch.UUID, ""), message_batch.decode(bytes(answer.body))

    async def connect(self, name: str, most: int, together: int, lost: Lost) -> DestinationStream:
        """Connects a worker that receives messages. ``next`` of the connection returns up to ``most`` messages; the
        node sends up to ``together`` messages at once. Raises the same errors as ``take``."""
        path, tries = f"{_path(name)}/consume?max={together}", 0
        while True:
            channel = await self._calls.channel(path, message_bytes_max=STREAM_BYTES_MAX)
            tries += 1
            try:
                return await DestinationStream.open(channel, lost, most=most)
            except BaseException as error:
                await channel.close()
                self._calls.left()
                if not isinstance(error, NotMaster | Unreachable | ChannelClosed) or tries >= OPEN_TRIES:
                    raise
            await asyncio.sleep(AGAIN_S)

    def left(self) -> None:
        """Notes that another node may have become the master."""
        self._calls.left()

    async def ack(self, name: str, vlsns: Sequence[int], uuid: str = "") -> None:
        """Acknowledges messages, durable on return. Raises ``NotFound`` if the destination with that ``uuid`` was
        dropped."""
        body = msgspec.json.encode({"set": works_for(len(vlsns)).pack_vlsns(vlsns), "uuid": uuid})
        await self._calls.call("POST", f"{_path(name)}/ack", body, again=True, answer_s=10.0)

    async def nack(
        self, name: str, vlsns: Sequence[int], reason: str, uuid: str = "", *, delay_s: float | None = None
    ) -> None:
        """Returns messages, which are delivered again or become dead letters. ``delay_s`` works as in
        ``Message.nack``. Raises the same errors as ``ack``, and ``BadArgument``."""
        asked: dict[str, Any] = {"vlsns": vlsns, "reason": reason, "uuid": uuid}
        if delay_s is not None:
            asked["delay_s"] = _seconds("delay_s", delay_s)
        body = encoded(asked)
        await self._calls.call("POST", f"{_path(name)}/nack", body, again=False)

    async def _told(self, method: str, path: str, body: bytes = b"", *, again: bool = True) -> dict[str, Any]:
        answer = await self._calls.call(method, path, body, again=again, answer_s=10.0)
        return decoded(answer, dict[str, Any], _WHAT)


def _seconds(key: str, value: float) -> float:
    """Raises ``BadArgument`` for infinity or NaN: JSON cannot hold such a number, and the setting would look as if
    it were left out."""
    if not isfinite(value):
        raise BadArgument(f"{key}: {value} is no number of seconds")
    return value


def _path(name: str) -> str:
    """Returns the path of the destination ``name``. Raises ``BadArgument``."""
    key_of(name)
    return f"{PATH}/{name}"
