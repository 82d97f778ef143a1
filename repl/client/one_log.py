"""A network for calls of one log only: a node that has another log refuses each call (``WrongGroup``).

URLs say where nodes are, and two groups may have the same name. So each call carries the log's own name. Whichever node
answers, no other log is read or written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from repl.web.types import Handler, Keeps, Listener, Network, Quick, Response
from vlsn.format.own_entries import FOUNDING_FIELD
from vlsn.seams import Buffer, Channel


@dataclass(frozen=True, slots=True)
class OneLog:
    """Sends calls through ``network`` for the log named ``founding`` (the field ``founding`` of ``GET /v1/status``)."""

    network: Network
    founding: str

    async def serve(
        self, host: str, port: int, handler: Handler, *, quick: Quick | None = None, keeps: Keeps | None = None
    ) -> Listener:
        return await self.network.serve(host, port, handler, quick=quick, keeps=keeps)

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
        return await self.network.request(
            method, url, headers=self._named(headers), body=body, timeout_s=timeout_s, peer=peer
        )

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
        return await self.network.connect(
            url,
            headers=self._named(headers),
            message_bytes_max=message_bytes_max,
            timeout_s=timeout_s,
            check=check,
            peer=peer,
        )

    async def close(self) -> None:
        await self.network.close()

    def _named(self, headers: Mapping[str, str] | None) -> dict[str, str]:
        return {**(headers or {}), FOUNDING_FIELD: self.founding}
