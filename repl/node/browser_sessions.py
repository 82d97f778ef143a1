"""Sessions of browsers, so that a person can read the live page of a node that asks for tokens.

    POST /v1/session {"token": "vlt_…"}      ─►  204, Set-Cookie: vlsnlog_session=…
    GET /v1/status, cookie                   ─►  what the role ``metrics`` reads, while the token has that role
    DELETE /v1/session, cookie               ─►  204, and the session is forgotten

1. A cookie only reads, with GET or HEAD, and only what the role ``metrics`` reads. No cookie changes anything, so a
   page of another site gains nothing by a cookie that the browser adds.
2. A session ends with its token, after ``SESSION_S``, and with the process. A node has ``SESSIONS_MAX``; a further one
   replaces the oldest.
3. The cookie is ``HttpOnly`` and ``SameSite=Strict``, and ``Secure`` on a connection with TLS.
"""

from __future__ import annotations

import hashlib
from http.cookies import CookieError, SimpleCookie
from typing import Final, NamedTuple, Protocol

import msgspec

from repl.auth.roles import Role, Route
from repl.web import query
from repl.web.calls import EMPTY, JSON, OPEN, ORDERED, Answer, Call
from repl.web.grants import Grant
from repl.web.json_objects import nothing_asked
from repl.web.types import Request, Response
from vlsn.errors import BadBody
from vlsn.format.records import JSON_FAULTS
from vlsn.limits import KIB
from vlsn.seams import Clock, Random

PATH: Final = "/v1/session"
COOKIE: Final = "vlsnlog_session"
SESSIONS_MAX: Final = 64
SESSION_S: Final = 12 * 3600.0
BODY_BYTES_MAX: Final = KIB
READS: Final = ("GET", "HEAD")
_BITS: Final = 256
_NONE: frozenset[str] = frozenset()


class Session(NamedTuple):
    token: str
    """The ID of the token that opened the session."""
    proof: str
    """The hash of the token's secret at that time: a token that was rotated opens none of its old sessions."""
    until_s: float


class Tokens(Protocol):
    """Finds out what a token gives."""

    def grant_of_token(self, text: str) -> Grant:
        """Returns the grant of a token. Raises ``Unauthorized``, ``NotMaster``."""
        ...


class _Opening(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: str


CALLS: Final = (
    Call(
        "sessions",
        "POST",
        PATH,
        "Open a session for a browser",
        (),
        (Answer(204, "The session is open.", headers={"Set-Cookie": f"The cookie `{COOKIE}`."}),),
        OPEN | ORDERED,
        {JSON: _Opening},
        text=f"The cookie reads what the role `metrics` reads, with GET and HEAD, for {SESSION_S / 3600:g} hours. "
        f"A node has {SESSIONS_MAX} sessions. The body has at most {BODY_BYTES_MAX:,} bytes.",
    ),
    Call(
        "sessions",
        "DELETE",
        PATH,
        "Close a browser's session",
        (),
        (Answer(204, "The session is forgotten.", headers={"Set-Cookie": "Removes the cookie."}),),
        ORDERED,
        EMPTY,
        False,
    ),
)
_openings = msgspec.json.Decoder(_Opening)


class BrowserSessions:
    """The sessions of one node, in memory. On the event loop only."""

    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock = clock
        self._random = random
        self._sessions: dict[bytes, Session] = {}
        """The sessions by the SHA-256 of their cookies, the oldest first."""

    def find(self, request: Request, route: Route) -> Session | None:
        """Returns the session of a request's cookie, if the cookie may be used for ``route``."""
        if route.role is not Role.METRICS or request.method not in READS:
            return None
        key = _key(request)
        found = self._sessions.get(key) if key is not None else None
        return found if found is not None and found.until_s > self._clock.monotonic_s() else None

    def open(self, grant: Grant, *, secure: bool) -> str:
        """Opens a session for a token's grant. Returns the value of ``Set-Cookie``. Raises ``Forbidden`` if the token
        does not have the role ``metrics``."""
        grant.check_role(Role.METRICS)
        value = b"".join(self._random.u64().to_bytes(8, "big") for _ in range(_BITS // 64)).hex()
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        until_s = self._clock.monotonic_s() + SESSION_S
        self._sessions[_hashed(value)] = Session(grant.who, grant.proof, until_s)
        return _cookie(value, round(SESSION_S), secure=secure)

    def close(self, request: Request) -> str:
        """Forgets the session of a request's cookie. Returns the value of ``Set-Cookie`` that removes the cookie."""
        key = _key(request)
        if key is not None:
            self._sessions.pop(key, None)
        return _cookie("", 0, secure=request.members is not None)

    def __len__(self) -> int:
        return len(self._sessions)


class SessionRoutes:
    def __init__(self, sessions: BrowserSessions, tokens: Tokens) -> None:
        self._sessions = sessions
        self._tokens = tokens

    async def open(self, request: Request) -> Response:
        query.only(request.query, _NONE)
        try:
            token = _openings.decode(await request.body(BODY_BYTES_MAX)).token
        except JSON_FAULTS:  # without the error's text, which could hold the token
            raise BadBody('no session: the body is {"token": "vlt_ID_SECRET"}') from None
        secure = request.members is not None
        return _answered(self._sessions.open(self._tokens.grant_of_token(token), secure=secure))

    async def close(self, request: Request) -> Response:
        query.only(request.query, _NONE)
        await nothing_asked(request)
        return _answered(self._sessions.close(request))


def _answered(cookie: str) -> Response:
    return Response(204, {"Set-Cookie": cookie, "Cache-Control": "no-store"})


def _cookie(value: str, age_s: int, *, secure: bool) -> str:
    flags = "; Secure" if secure else ""
    return f"{COOKIE}={value}; Max-Age={age_s}; Path=/; HttpOnly; SameSite=Strict{flags}"


def _key(request: Request) -> bytes | None:
    """Returns the key of a request's cookie; None without one, or for a header that is no list of cookies."""
    try:
        found = SimpleCookie(request.headers.get("Cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return _hashed(found.value) if found is not None and found.value else None


def _hashed(value: str) -> bytes:
    return hashlib.sha256(value.encode()).digest()
