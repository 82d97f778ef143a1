"""The check of signed calls, of members and of commands, before any of them is looked at, and the signature of the
answers.

    signature ─► session and number ─► names ─► the handler (is the sender listed? its incarnation?) ─► answer, signed

1. A call with a wrong signature is answered unsigned (401 ``unauthorized``). Every answer after that check is signed,
   also a refusal.
2. From the level ``vlsn.levels.SIGNED`` on, unsigned calls are refused. Below, they are taken from members that cannot
   sign, and status names these.
3. An answer is signed with the call's key, so that members whose files differ for a moment understand each other.
4. The frames of a feed are not signed: its upgrade is, in both directions.
5. A call from outside, on any path that is not of members, may be signed, too (``CLI``). It must be for this node's
   address, and its body has at most ``PEER_BODY_BYTES_MAX``. A body that is sent piece by piece is answered unsigned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from repl.auth.group_key import GroupKeys, Key
from repl.auth.sessions import CLI, Sessions
from repl.auth.signatures import HEADER, CallSignature, digest, equal, feed_values, read_call, sign_answer, sign_call
from repl.auth.trust import Trust
from repl.web import problem
from repl.web.limits import PEER_BODY_BYTES_MAX
from repl.web.types import Handler, Request, Response, Upgrade
from vlsn.errors import BadArgument, Unauthorized, VlsnLogError, WrongName
from vlsn.format.records import JSON_FAULTS
from vlsn.levels import LEVEL_1, LEVELS, SIGNED, Levels, read_levels
from vlsn.seams import Random

FEED = "/v1/feed"
PEER = "/v1/peer/"
HELLO = "/v1/peer/hello"
_SWITCHES = 101


class _Named(msgspec.Struct, gc=False):
    sender: str = ""


class _Speaks(msgspec.Struct, gc=False):
    levels: Levels = LEVEL_1


_levels = msgspec.json.Decoder(_Speaks)
_sender = msgspec.json.Decoder(_Named)


def is_between_members(path: str) -> bool:
    """Says whether a call to ``path`` is one that only members make."""
    return path.startswith(PEER) or path == FEED


class PeerDoor:
    """The door of one node for the calls of other members, and for signed calls from outside."""

    def __init__(self, trust: Trust, random: Random) -> None:
        self._trust = trust
        self._sessions = Sessions(random)

    async def serve(self, request: Request, handler: Handler) -> Response | Upgrade:
        """Answers with ``handler``, which never raises, if the call may be looked at. Raises ``Unauthorized``,
        ``WrongVersion``, ``TooLarge`` and ``BadBody``, which are answered unsigned."""
        keys, text = self._trust.keyring.keys, request.headers.get(HEADER)
        if keys is None:
            return await handler(request)
        if text is None and self._trust.is_signed_only():
            await self._check_levels(request)
            raise Unauthorized("calls between members must be signed with the group's key")
        if text is None:
            body = await request.body(PEER_BODY_BYTES_MAX)
            self._trust.met(_sender_of(request, body), False)
            return await handler(request.with_body(body))
        key, call = self._head(keys, text, request)
        request, body = await self._with_body(call, request)
        try:
            self._check(call, request, body)
        except VlsnLogError as error:
            return await self._signed(problem.response(error), key, call)
        self._trust.met(call.signer.sender, True)
        return await self._signed(await handler(request), key, call)

    async def serve_outside(self, request: Request, handler: Handler) -> Response | Upgrade:
        """Answers a call that no member makes. If it is signed, ``handler`` finds the key's ID in ``Request.key``.
        Raises as ``serve``."""
        keys, text = self._trust.keyring.keys, request.headers.get(HEADER)
        if keys is None or text is None:
            return await handler(request)
        key, call = self._head(keys, text, request)
        request, _ = await self._with_body(call, request)
        try:
            self._check_outside(call)
        except VlsnLogError as error:
            return await self._signed(problem.response(error), key, call)
        request.key = key.id
        return await self._signed(await handler(request), key, call)

    def is_signed(self, request: Request) -> bool:
        """Says whether the head of a request is signed with a key of the group. The body, and whether the call came
        before, are not looked at. Without keys every request counts as signed."""
        keys, text = self._trust.keyring.keys, request.headers.get(HEADER)
        if keys is None:
            return True
        if text is None:
            return False
        try:
            self._head(keys, text, request)
        except Unauthorized:
            return False
        return True

    def _head(self, keys: GroupKeys, text: str, request: Request) -> tuple[Key, CallSignature]:
        """Returns the signature of a request's head, which is right, and its key. Raises ``Unauthorized``."""
        call = read_call(text)
        key = check_known(keys, call)
        if not equal(call.mac, self._expected(key, call, request)):
            raise Unauthorized(f"the signature of {call.signer.sender}'s call is wrong")
        return key, call

    async def _with_body(self, call: CallSignature, request: Request) -> tuple[Request, bytes]:
        """Reads the body of a call whose head is signed. Raises ``Unauthorized`` if it is another body."""
        body = await request.body(PEER_BODY_BYTES_MAX)
        if not equal(call.body, await self._trust.digest(body)):
            raise Unauthorized(f"the signature of {call.signer.sender}'s call is wrong: it is of another body")
        return request.with_body(body), body

    def _expected(self, key: Key, call: CallSignature, request: Request) -> bytes:
        feed = feed_values(request.headers) if request.path == FEED else ()
        group, method, target = self._trust.group, request.method, request.target
        return sign_call(key, call.signer, group=group, method=method, target=target, body=call.body, feed=feed).mac

    async def _check_levels(self, request: Request) -> None:
        """Checks that whoever sent an unsigned call speaks the level that needs signatures, if the call names levels:
        an older binary knows this error. Raises ``WrongVersion``."""
        levels = LEVELS
        if request.path == FEED:
            levels = read_levels(request.headers.get("Vlsnlog-Version", ""))
        elif request.path == HELLO:
            try:
                levels = _levels.decode(await request.body(PEER_BODY_BYTES_MAX)).levels
            except JSON_FAULTS:
                return
        Levels(SIGNED, LEVELS.max).check_peer(levels, own=self._trust.name, peer="the caller")

    def _check(self, call: CallSignature, request: Request, body: bytes) -> None:
        """Checks that a call with a right signature is for this node, comes for the first time, and speaks for its
        sender. Raises ``WrongName``, ``StaleSession``, ``Unauthorized``."""
        by = call.signer
        if by.to != self._trust.name:
            raise WrongName(f"{by.sender} has called {by.to}; this is {self._trust.name}")
        self._sessions.take(by.sender, by.process, by.session, by.n)
        sender = _sender_of(request, body)
        if sender and sender != by.sender:
            raise Unauthorized(f"{by.sender} has signed a call in the name of {sender[:40]}")

    def _check_outside(self, call: CallSignature) -> None:
        """Checks that a call with a right signature is from a command, for this node, and comes for the first time.
        Raises as ``_check``."""
        by = call.signer
        if by.sender != CLI:
            raise WrongName(f"{by.sender} is a member, which makes no such calls")
        if not self._trust.is_here(by.to):
            raise WrongName(f"the call is signed for {by.to}; this is {self._trust.name}, at another address")
        self._sessions.take(by.sender, by.process, by.session, by.n)

    async def _signed(self, answer: Response | Upgrade, key: Key, call: CallSignature) -> Response | Upgrade:
        if isinstance(answer, Upgrade):
            return replace(answer, headers=_with(answer.headers, sign_answer(key, call.mac, _SWITCHES, digest(b""))))
        if answer.stream is not None or answer.push is not None:
            return answer
        signature = sign_answer(key, call.mac, answer.status, await self._trust.digest(answer.body))
        return replace(answer, headers=_with(answer.headers, signature))


def check_known(keys: GroupKeys, call: CallSignature) -> Key:
    """Returns the key of a signature. Raises ``Unauthorized``."""
    key = keys.of(call.key)
    if key is None:
        raise Unauthorized(f"the key {call.key} is not known here; {', '.join(keys.ids)} are accepted")
    return key


def _with(headers: Mapping[str, str], signature: str) -> dict[str, str]:
    return {**headers, HEADER: signature}


def _sender_of(request: Request, body: bytes) -> str:
    """Returns the sender that the call itself names, "" if it names none."""
    if request.path == FEED:
        return request.headers.get("Vlsnlog-Node", "")
    try:
        return _sender.decode(body).sender if request.method == "POST" else request.query.get("sender", "")
    except (*JSON_FAULTS, BadArgument):  # the handler refuses it
        return ""
