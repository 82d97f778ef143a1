"""A network for a client with a token: each call carries it, and one that is refused reads the token's file again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from repl.credentials.bearer import HEADER, Bearer
from repl.web.types import Handler, Keeps, Listener, Network, Quick, Response
from vlsn.errors import BadArgument, Unauthorized, Unreachable
from vlsn.seams import Buffer, Channel

UNAUTHORIZED = 401


@dataclass(frozen=True, slots=True)
class Bearing:
    """Sends calls through ``network`` with the token of ``bearer``.

    A URL that would show the token to others is not called. That raises ``BadArgument``, or ``Unreachable`` if the
    caller learns its URLs from nodes (``learns``), because other nodes may still be called."""

    network: Network
    bearer: Bearer
    learns: bool = False

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
        while True:
            shown = self._header(url)
            response = await self.network.request(
                method, url, headers={**(headers or {}), HEADER: shown}, body=body, timeout_s=timeout_s, peer=peer
            )
            if response.status != UNAUTHORIZED or not self._renewed(shown):
                return response

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
        while True:
            shown = self._header(url)
            try:
                return await self.network.connect(
                    url,
                    headers={**(headers or {}), HEADER: shown},
                    message_bytes_max=message_bytes_max,
                    timeout_s=timeout_s,
                    check=check,
                    peer=peer,
                )
            except Unauthorized:
                if not self._renewed(shown):
                    raise

    async def close(self) -> None:
        await self.network.close()

    def _renewed(self, refused: str) -> bool:
        try:
            return self.bearer.renewed(refused)
        except BadArgument as error:
            raise Unauthorized(f"the token was refused, and {error}") from None

    def _header(self, url: str) -> str:
        try:
            return self.bearer.header(url)
        except BadArgument as error:
            if self.learns:
                raise Unreachable(str(error)) from None
            raise
