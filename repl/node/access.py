"""Access: the rights of each request, by its token, the group's key or the setting ``anonymous``.

    Authorization: Bearer vlt_ID_SECRET ─► the token's record in this node's log ─► its roles, until it ends
    a client certificate's URI          ─► the token that names the URI

1. A token that is not in the log is refused, and so is one that has expired, or whose record cannot be read. The newest
   entry counts, durable or not, so a revocation works as soon as its COMMIT has come.
2. A node that has heard no master for ``token_grace_s`` takes no token, since it may miss a revocation.
3. A request that is signed with an accepted key of the group may do everything. Calls of members are not judged
   here. Any other request without a token has the roles of ``anonymous``.
4. WebSockets, tails and staged transactions outlive their request. They are looked at every ``LOOK_S``, and end with
   their token (close code ``UNAUTHORIZED``). Remembered heads ask again with every request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from repl.auth.default_key import anonymous_of
from repl.auth.roles import LOCAL_ROLES, Role, Route
from repl.auth.tokens import SCHEME, TokenRecord, key_of, parse, record_of, records_in
from repl.elect.electing import Electing
from repl.group.member import Member
from repl.node.browser_sessions import BrowserSessions, Session
from repl.node.trail import Trail
from repl.web import problem
from repl.web.grants import ANYBODY, Grant, Unwatch
from repl.web.mastership import redirect
from repl.web.types import Answer, Leave, Push, Request, Response, Sink, Start, Upgrade
from repl.web.usage import NAMES_A_TOKEN, Usage
from vlsn.errors import Forbidden, NotMaster, ProducersMissing, TooLarge, Unauthorized, VlsnLogError
from vlsn.seams import Channel
from vlsn.state import consumers, destinations, sinks
from vlsn.state.small_state import Kept
from vlsn.together import together

LOOK_S: Final = 0.25
"""The seconds between two looks for tokens that have ended."""
UNAUTHORIZED: Final = 4401
"""The close code of a WebSocket whose token has ended."""
DECODED_MAX: Final = 2_048
_NAMED: Final = (consumers.PREFIX, sinks.PREFIX, destinations.PREFIX)
"""The starts of the small state's names that clients make."""
KEY: Final = "key:"
"""The start of ``Grant.who`` if a key of the group has signed. No token's ID has a colon."""
GET_IN: Final = (
    "send a token (Authorization: Bearer, VLSNLOG_TOKEN), or let the command sign with the group's key (--group-key "
    "FILE, VLSNLOG_GROUP_KEY)"
)
_ANONYMOUS: Final = {
    "all": ANYBODY,
    "append": replace(ANYBODY, roles=frozenset(LOCAL_ROLES)),
    "none": replace(ANYBODY, roles=frozenset()),
}


class _Watch(NamedTuple):
    grant: Grant
    end: Callable[[], None]
    until_s: float | None


class Access:
    """The rights of requests to one node. On the event loop only."""

    def __init__(self, member: Member, trail: Trail) -> None:
        self._member = member
        self._trail = trail
        self._anybody = _ANONYMOUS[anonymous_of(member.config)]
        self.sessions = BrowserSessions(member.seams.clock, member.seams.random)
        self._decoded: dict[str, tuple[Kept, TokenRecord | None]] = {}
        self._by_uri: dict[str, str] = {}
        """The ID of the token that was last found for each URI."""
        self._usages: dict[str, Usage] = {}
        self._watched: dict[object, _Watch] = {}
        self._timer: asyncio.TimerHandle | None = None

    def check(self, request: Request, route: Route) -> None:
        """Finds out what the sender may do (``request.grant``), and checks that this suffices for ``route``. Raises
        ``Unauthorized``, ``Forbidden``, and ``NotMaster`` or ``ProducersMissing`` while this node cannot say."""
        role = route.role_of(request)
        if role is Role.OPEN or role is Role.KEY:
            return
        grant = request.grant = self._grant_of(request, route)
        if not grant.has(role):
            if grant.ends:
                raise Forbidden(f"token {grant.who} lacks the role {role}, which this call needs")
            raise Unauthorized(f"this call needs the role {role}: {GET_IN}")
        if grant.names and route.name is not None:
            grant.check_name(route.name)
            if request.method == "PUT":
                self.check_names(grant, (route.name,))

    def check_names(self, grant: Grant, names: Iterable[str]) -> None:
        """See ``Grant.check_new``."""
        small = self._member.opened().log.view.history.small
        new = sum(not any(prefix + name in small for prefix in _NAMED) for name in names)
        if not new:
            return
        prefixes = tuple(prefix + grant.names for prefix in _NAMED)
        if new + sum(name.startswith(prefixes) for name in small) > NAMES_A_TOKEN:
            raise TooLarge(f"{grant.who} has {NAMES_A_TOKEN} names under {grant.names!r}, which is its limit")

    def redirected(self, request: Request, route: Route) -> Response | None:
        """Returns the redirect to the master, which knows more tokens, for a call that only the master takes."""
        if not route.to_master or self._member.is_master() or self._member.master_url() is None:
            return None
        return redirect(self._member, request)

    def _grant_of(self, request: Request, route: Route) -> Grant:
        if request.key:
            return Grant(who=f"{KEY}{request.key}", watches=self)
        text = request.headers.get("Authorization")
        if text is None:
            session = self.sessions.find(request, route)
            if session is not None:
                return self._grant_of_session(session)
            return self._shown_by(request.uris) or self._anybody
        token = text[len(SCHEME) :].strip() if text[: len(SCHEME)].lower() == SCHEME.lower() else ""
        if parse(token) is None and self._anybody is ANYBODY:
            return ANYBODY
        return self.grant_of_token(token)

    def _grant_of_session(self, session: Session) -> Grant:
        """Returns what a browser's session reads while its token holds, else the rights of anybody."""
        grant = Grant(who=session.token, roles=frozenset({Role.METRICS}), proof=session.proof, watches=self)
        record = self._record(session.token)
        holds = record is not None and Role.METRICS in record.roles and self.refusal(grant) is None
        return grant if holds else self._anybody

    def grant_of_token(self, text: str) -> Grant:
        """Returns the rights of a token. Raises ``Unauthorized``, and ``NotMaster`` or ``ProducersMissing`` while this
        node cannot say."""
        secret = parse(text)
        if secret is None:
            raise Unauthorized("this is no token: a token has the form vlt_ID_SECRET")
        record = self._record(secret.id)
        if record is None or not secret.opens(record):
            self._check_whole()
            raise Unauthorized(f"there is no token {secret.id} with that secret; it may be revoked")
        return self._granted(secret.id, record)

    def _granted(self, id: str, record: TokenRecord) -> Grant:
        """Returns the rights of a token. Raises what ends them."""
        grant = Grant(
            who=id,
            roles=frozenset(record.roles),
            keys=record.keys.encode("utf-8", "surrogatepass"),
            names=record.names,
            proof=record.proof,
            watches=self,
            usage=self._usage_of(id, record),
        )
        if (refusal := self.refusal(grant)) is not None:
            raise refusal
        return grant

    def _check_whole(self) -> None:
        """Raises ``ProducersMissing`` while this node may have lost tokens."""
        if self._member.opened().log.view.history.small.lacks_to:
            raise ProducersMissing("this node has lost what it knew of tokens, and asks the other members")

    def _shown_by(self, uris: frozenset[str]) -> Grant | None:
        """Returns the rights of the token that a certificate with ``uris`` is, or None if it is no token. A node that
        cannot say yet lets a call do as much as one without a certificate."""
        if self._member.open is None and self._anybody.roles != frozenset():
            return None
        for uri in uris:
            id = self._by_uri.get(uri)
            record = self._record(id) if id is not None else None
            now = self._member.seams.clock.wall_us()
            if id is None or record is None or record.uri != uri or record.expired(now):
                id, record = self._found(uri)
            if id is not None and record is not None:
                return self._granted(id, record)
        return None

    def _found(self, uri: str) -> tuple[str | None, TokenRecord | None]:
        """Looks for the token of ``uri``, and remembers it. One that has not expired comes first."""
        small, now = self._member.opened().log.view.history.small, self._member.seams.clock.wall_us()
        found = [(record.expired(now), id) for id, record in records_in(small).items() if record.uri == uri]
        if not found:
            self._check_whole()
            return None, None
        if len(self._by_uri) >= DECODED_MAX:
            self._by_uri.clear()
        id = self._by_uri[uri] = min(found)[1]
        return id, self._record(id)

    def _usage_of(self, id: str, record: TokenRecord) -> Usage:
        usage = self._usages.get(id)
        if usage is None:
            if len(self._usages) >= DECODED_MAX:
                # Those that are open keep counting in their grants.
                self._usages = {each: used for each, used in self._usages.items() if used.streams}
            usage = self._usages[id] = Usage(id)
        usage.bytes.per_s, usage.appends.per_s = record.bytes_per_s, record.appends_per_s
        return usage

    def _record(self, id: str) -> TokenRecord | None:
        """Returns the token's record. Raises ``NotMaster`` or ``Damaged`` while the log is not open."""
        kept = self._member.opened().log.view.history.small.get(key_of(id))
        if kept is None:
            return None
        known = self._decoded.get(id)
        if known is None or known[0] is not kept:
            if len(self._decoded) >= DECODED_MAX:
                self._decoded.clear()
            known = self._decoded[id] = kept, record_of(kept)
        return known[1]

    # The end of tokens.

    def refusal(self, grant: Grant) -> VlsnLogError | None:
        """See ``Grant.refusal``."""
        if grant.who.startswith(KEY):
            return self._key_refusal(grant.who.removeprefix(KEY))
        try:
            record = self._record(grant.who)
        except VlsnLogError as error:
            return error
        if record is None or record.proof != grant.proof:
            return Unauthorized(f"token {grant.who} was revoked")
        if record.expired(self._member.seams.clock.wall_us()):
            return Unauthorized(f"token {grant.who} has expired")
        silent_s, grace_s = self._member.opened().part(Electing).silent_s, self._member.config.token_grace_s
        if silent_s > grace_s:
            return NotMaster(f"this node has heard no master for {silent_s:.0f} s, and may miss a revocation")
        return None

    def _key_refusal(self, id: str) -> VlsnLogError | None:
        keys = self._member.keyring.keys
        return None if keys is not None and keys.of(id) is not None else Unauthorized(f"the key {id} was dropped")

    def watch(self, grant: Grant, end: Callable[[], None], key: object, lasts_s: float | None) -> Unwatch:
        """See ``Grant.watch``."""
        key = object() if key is None else (key, grant.who)
        loop = asyncio.get_running_loop()
        self._watched[key] = _Watch(grant, end, None if lasts_s is None else loop.time() + lasts_s)
        if self._timer is None:
            self._timer = loop.call_later(LOOK_S, self._look)
        return lambda: self._unwatch(key)

    def _unwatch(self, key: object) -> None:
        self._watched.pop(key, None)
        if not self._watched:
            self.close()

    def close(self) -> None:
        """Looks no more until the next watch."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        for key, (grant, end, until_s) in list(self._watched.items()):
            if until_s is not None and until_s <= loop.time():
                self._watched.pop(key, None)
            elif grant.refusal() is not None and self._watched.pop(key, None) is not None:
                end()
        if self._watched and self._timer is None:
            self._timer = loop.call_later(LOOK_S, self._look)

    # What outlives its request.

    def guarded(self, grant: Grant, answer: Response | Upgrade, *, reads: bool) -> Response | Upgrade:
        """Returns the answer to a request of ``grant``, made such that it ends with its token. Once the token has
        ended, bytes that were read meanwhile are not sent."""
        if not grant.ends:
            return answer
        streams = isinstance(answer, Upgrade) or answer.push is not None
        if streams and grant.usage is not None:
            grant.usage.check_stream()
        if isinstance(answer, Upgrade):
            return replace(answer, run=_until_ended(grant, answer))
        if answer.push is not None:
            answer.push = _GuardedPush(grant, answer.push)
        elif reads and (refusal := grant.refusal()) is not None:
            return problem.response(refusal)
        return answer

    def guarded_start(self, request: Request, route: Route, start: Start | None) -> Start | None:
        """Returns the short way of a head, made such that it asks about the token with every request."""
        grant = request.grant
        if start is None or not grant.ends:
            return start
        reads = request.method == "GET"

        def begin(body: bytes, answer: Answer) -> Leave:
            if (refusal := grant.refusal()) is not None:
                self._trail.refused(request, refusal)
                answer(self.redirected(request, route) or problem.response(refusal))
                return _nothing

            def checked(response: Response) -> None:
                ended = grant.refusal()
                answer(response if ended is None else problem.response(ended))

            return start(body, checked if reads else answer)

        return begin


def _until_ended(grant: Grant, upgrade: Upgrade) -> Callable[[Channel], Awaitable[None]]:
    async def run(channel: Channel) -> None:
        failures: list[Exception] = []
        ended = False

        async def serve() -> None:
            task = asyncio.current_task()
            assert task is not None

            def end() -> None:
                nonlocal ended
                ended = True
                task.cancel()

            unwatch, left = grant.watch(end), grant.stream()
            try:
                await upgrade.run(channel)
            except Exception as failure:  # raised again below, without the group of ``together``
                failures.append(failure)
            finally:
                unwatch()
                left()

        await together(serve=serve())
        if ended:
            await channel.close(UNAUTHORIZED)
        if failures:
            raise failures[0]

    return run


class _GuardedPush:
    """A body that sends itself until its token ends."""

    __slots__ = ("_grant", "_left", "_push", "_sink", "_unwatch")

    def __init__(self, grant: Grant, push: Push) -> None:
        self._grant, self._push = grant, push
        self._sink: Sink | None = None
        self._unwatch: Unwatch = _nothing
        self._left: Unwatch = _nothing

    def begin(self, sink: Sink) -> None:
        self._sink = sink
        self._unwatch, self._left = self._grant.watch(self._end), self._grant.stream()
        self._push.begin(sink)

    def go_on(self) -> None:
        self._push.go_on()

    def close(self) -> None:
        self._unwatch()
        self._left()
        self._push.close()

    def _end(self) -> None:
        self._push.close()
        assert self._sink is not None
        self._sink.end()


def _nothing() -> None:
    """Ends what has not begun."""
