"""Signed calls to other members, and the check of their answers.

    call, signed with the last session  ─►
                                        ◄─  401 ``stale-session``, signed: the call is signed again, with that session
                                        ◄─  any answer, signed for this call
                                        ◄─  an unsigned answer: taken below ``vlsn.levels.SIGNED`` only
                                        ◄─  a wrong signature: ``Unreachable``, as if nobody had answered

Without a key, calls are made and answers taken as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from repl.auth.group_key import Key
from repl.auth.signatures import (
    HEADER,
    NO_SESSION,
    CallSignature,
    Signer,
    digest,
    feed_values,
    is_answer,
    sign_call,
)
from repl.auth.trust import Trust
from repl.web.problem import error_of
from repl.web.types import Network, Response
from vlsn.errors import StaleSession, Unreachable
from vlsn.seams import Buffer, Channel

TRIES = 3
"""How often a call is signed: with the last session, with the one that the answer gives, and once more if the other
process ended in between."""
_UNAUTHORIZED = 401
_SWITCHES = 101


class PeerCalls:
    """The calls of one node to the other members."""

    def __init__(self, network: Network, trust: Trust) -> None:
        self._network = network
        self._trust = trust
        self._sessions: dict[str, tuple[str, int]] = {}
        """Each member's session for this process, and the number of the last call in it."""

    async def request(
        self,
        to: str,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Buffer = b"",
        timeout_s: float,
    ) -> Response:
        """Calls the member ``to``, at most ``timeout_s`` seconds for each try, and returns its answer. Raises
        ``Unreachable``, also if the answer is not signed as it must be."""
        keys = self._trust.keyring.keys
        if keys is None:
            return await self._network.request(method, url, headers=headers, body=body, timeout_s=timeout_s, peer=to)
        hashed = await self._trust.digest(body)
        for _ in range(TRIES):
            signature = self._signed(keys.signing, to, method, url, hashed)
            answer = await self._network.request(
                method,
                url,
                headers={**(headers or {}), HEADER: signature.header()},
                body=body,
                timeout_s=timeout_s,
                peer=to,
            )
            self._check(keys.signing, signature, answer, await self._trust.digest(answer.body), url)
            if not self._is_stale(signature, answer):
                return answer
        raise Unreachable(f"{url}: {to} names another session each time")

    async def connect(
        self, to: str, url: str, *, headers: Mapping[str, str], message_bytes_max: int, timeout_s: float
    ) -> Channel:
        """Opens a channel to the member ``to``; ``headers`` are signed, too. Raises as ``Network.connect`` does, and
        ``Unreachable`` if the answer is not signed as it must be."""
        keys = self._trust.keyring.keys
        if keys is None:
            return await self._network.connect(
                url, headers=headers, message_bytes_max=message_bytes_max, timeout_s=timeout_s, peer=to
            )
        key = keys.signing
        for _ in range(TRIES):
            signature = self._signed(key, to, "GET", url, digest(b""), feed=feed_values(headers))

            def check(answer: Response, signature: CallSignature = signature) -> None:
                self._check(key, signature, answer, digest(answer.body), url)

            try:
                return await self._network.connect(
                    url,
                    headers={**headers, HEADER: signature.header()},
                    message_bytes_max=message_bytes_max,
                    timeout_s=timeout_s,
                    check=check,
                    peer=to,
                )
            except StaleSession as stale:
                self._begin(signature, stale.session)
        raise Unreachable(f"{url}: {to} names another session each time")

    def _signed(
        self, key: Key, to: str, method: str, url: str, body: bytes, feed: list[str] | None = None
    ) -> CallSignature:
        session, last = self._sessions.get(to, (NO_SESSION, 0))
        self._sessions[to] = session, last + 1
        trust = self._trust
        signer = Signer(sender=trust.name, to=to, process=trust.process, session=session, n=last + 1)
        parts = urlsplit(url)
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        return sign_call(key, signer, group=trust.group, method=method, target=target, body=body, feed=feed or ())

    def _check(self, key: Key, call: CallSignature, answer: Response, body: bytes, url: str) -> None:
        """Checks the signature of an answer. Raises ``Unreachable``."""
        to, text = call.signer.to, answer.headers.get(HEADER)
        if text is not None and not is_answer(key, text, call.mac, answer.status, body):
            raise Unreachable(f"{url}: the answer in {to}'s name is signed with another key, or for another call")
        if text is None and answer.status == _UNAUTHORIZED:
            raise Unreachable(f"{url}: {to} does not accept the key {key.id}: {error_of(bytes(answer.body))}")
        if text is None and self._trust.is_signed_only():
            said = "" if answer.status in (200, _SWITCHES) else f": {error_of(bytes(answer.body))}"
            raise Unreachable(f"{url}: the answer in {to}'s name is not signed{said}")
        self._trust.met(to, text is not None)

    def _is_stale(self, call: CallSignature, answer: Response) -> bool:
        """Says whether the answer only names the session to use, and takes that."""
        error = error_of(bytes(answer.body)) if answer.status == _UNAUTHORIZED else None
        if isinstance(error, StaleSession):
            self._begin(call, error.session)
        return isinstance(error, StaleSession)

    def _begin(self, call: CallSignature, session: str) -> None:
        """Takes the session that the answer to ``call`` names. If the answer to another call has named one meanwhile,
        that one is used: a second one would end it, with all calls in it."""
        if self._sessions[call.signer.to][0] == call.signer.session:
            self._sessions[call.signer.to] = session, 0
