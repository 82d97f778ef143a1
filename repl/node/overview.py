"""The whole group as one page shows it: ``GET /v1/overview``. The node that is asked asks the other members.

    a browser ─► GET /v1/overview of n2 ─► GET /v1/peer/status of n1 and n3, signed ─► one document

1. The members are asked at most once in ``OVERVIEW_S``, however many pages ask, and not at all while nobody asks.
2. A member that does not answer within ``MEMBER_S`` keeps its entry, with the error in place of its status.
3. Lists that grow with the names of a group are in the document once: from the master, or from this node if no master
   answers. A member's own CDC consumers and events are in its entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from repl.group.member import Member
from repl.group.peers import get
from repl.node.parts import NodeParts
from repl.node.status import status
from repl.repair.providing import check_names
from repl.shared import Shared
from repl.web import query
from repl.web.calls import LIST, MEMBERS, OBJECT, TEXT, WHOLE, Call, known, maybe, ok, record, required, words
from repl.web.limits import TOLD_S
from repl.web.types import Request, Response
from vlsn.errors import BadArgument, BadBody, TooLarge, VlsnLogError, WrongName
from vlsn.ids import NodeName

PATH: Final = "/v1/overview"
PEER_PATH: Final = "/v1/peer/status"
OVERVIEW_S: Final = 0.5
"""How old an overview may be, in seconds."""
MEMBER_S: Final = 1.0
"""Seconds for a member's answer."""
STATUS_BYTES_MAX: Final = 4 << 20
"""The most bytes of a member's answer."""
EVENTS_SHOWN: Final = 40
"""The newest events of each member, and as many warnings and errors among older ones."""
_OF_ALL: Final = ("consumers", "destinations", "holds")
"""The lists of a status that are alike on every node, or that only the master knows in full."""
_ASKED = (
    required(words("group", "The group.")),
    required(words("sender", "The member that asks.")),
    required(words("to", "The member asked.")),
)
_NAMES = known(*_ASKED)
_NONE: Final[frozenset[str]] = frozenset()
_STILL = record({"term": WHOLE, "seconds": {"type": "number"}, "former": TEXT})
_MEMBER = record(
    {"name": TEXT, "url": TEXT, "age_ms": maybe(WHOLE), "status": maybe(OBJECT), "error": maybe(OBJECT)},
)
_LISTS = dict.fromkeys(_OF_ALL, LIST)
CALLS = (
    Call(
        "health and status",
        "GET",
        PATH,
        "Read the state of all members",
        (),
        (
            ok(
                record(
                    {
                        **dict.fromkeys(("asked", "group"), TEXT),
                        "time": WHOLE,
                        **dict.fromkeys(("leader", "lists_of"), maybe(TEXT)),
                        "stood_still": maybe(_STILL),
                        "members": {"type": "array", "items": _MEMBER},
                        **_LISTS,
                    }
                ),
                f"The group, at most {OVERVIEW_S:g} s old.",
            ),
        ),
        text="`asked` is the node that answers. It asks the others, and waits for each at most "
        f"{MEMBER_S:g} s. Each entry of `members` has the `status` of `GET /v1/status` without its lists of names, and "
        "with `events`; or an `error`. `consumers`, `destinations` and `holds` are those of `lists_of`: the master, if "
        "it answers. `stood_still` is how long no append was acknowledged at the last change of master.",
        example="$URL/v1/overview",
    ),
    Call(
        "members",
        "GET",
        PEER_PATH,
        "Send this node's status to a member",
        _ASKED,
        (ok(record({"status": OBJECT, **_LISTS}, _OF_ALL), "The status; the lists only from the master."),),
        MEMBERS,
    ),
)
_JSON = {"Content-Type": "application/json", "Cache-Control": "no-store"}


_EMPTY: Final = msgspec.Raw(b"[]")


class _Glance(msgspec.Struct):
    """The fields of a member's status that the gathering node looks at."""

    node: str
    state: str
    term: int
    elections: dict[str, Any]


class _Told(msgspec.Struct):
    """A member's answer. The lists are there only if it is the master."""

    status: msgspec.Raw
    consumers: msgspec.Raw = _EMPTY
    destinations: msgspec.Raw = _EMPTY
    holds: msgspec.Raw = _EMPTY


_told = msgspec.json.Decoder(_Told)
_glance = msgspec.json.Decoder(_Glance)


class Overview:
    """Gathers the states of all members on one node, and answers the other nodes that gather. ``long`` returns the long
    fields of this node's status, encoded, which all routes share."""

    def __init__(self, parts: NodeParts, long: Callable[[], Awaitable[Mapping[str, msgspec.Raw]]]) -> None:
        self._parts = parts
        self._long = long
        self._member: Member = parts.member
        self._shared: Shared[bytes] = Shared(self._fresh)
        self._found = b""
        self._until_s = 0.0
        self._told = b""
        self._told_until_s = 0.0

    async def overview(self, request: Request) -> Response:
        query.only(request.query, _NONE)
        found = self._recent()
        return Response(200, _JSON, found or await self._shared.get())

    async def peer_status(self, request: Request) -> Response:
        """Answers ``GET /v1/peer/status``. Raises ``WrongGroup``, ``WrongName``, ``BadArgument``."""
        asked = request.query
        if not asked.keys() >= _NAMES:
            raise BadArgument(f"this call needs all of: {', '.join(sorted(_NAMES))}")
        request.check_member(asked["sender"])
        check_names(self._member, asked["group"], asked["sender"], asked["to"])
        return Response(200, _JSON, await self._own())

    def _recent(self) -> bytes:
        """Returns the last document, if it is recent; else no bytes."""
        return self._found if self._member.seams.clock.monotonic_s() < self._until_s else b""

    async def _fresh(self) -> bytes:
        """Returns the last document, or a new one. Only one runs at a time."""
        if not (found := self._recent()):
            found = self._found = await self._gather()
            self._until_s = self._member.seams.clock.monotonic_s() + OVERVIEW_S
        return found

    async def _own(self) -> bytes:
        """Returns this node's answer to nodes that gather. It is made once for all that ask within ``TOLD_S``."""
        now = self._member.seams.clock.monotonic_s
        if now() >= self._told_until_s:
            long = await self._long() if self._member.is_master() else {"cdc": self._parts.cdc.told()}
            if now() >= self._told_until_s:  # else another has made it meanwhile
                self._told, self._told_until_s = self._made(long), now() + TOLD_S
        return self._told

    def _made(self, long: Mapping[str, Any]) -> bytes:
        lists = {name: long[name] for name in _OF_ALL if name in long}
        rest = {name: value for name, value in long.items() if name not in lists}
        said = {**status(self._parts, rest), "events": self._member.events.shown(EVENTS_SHOWN)}
        return msgspec.json.encode({"status": said, **lists})

    async def _gather(self) -> bytes:
        member = self._member
        urls = {**member.members.listed, member.name: member.config.url}
        rows = await asyncio.gather(*(self._row(name, urls[name]) for name in sorted(urls)))
        answers = {row["name"]: told for row, told in rows if told is not None}
        glances = {name: _glance.decode(told.status) for name, told in answers.items()}
        leaders = [each for each in glances.values() if each.state == "MASTER"]
        leader = max(leaders, key=lambda each: each.term, default=None)
        lists_of = leader.node if leader is not None else member.name
        lists: Mapping[str, Any]
        if leader is not None:
            lists = {name: getattr(answers[lists_of], name) for name in _OF_ALL}
        else:
            lists = {name: found for name, found in (await self._long()).items() if name in _OF_ALL}
        return msgspec.json.encode(
            {
                "asked": member.name,
                "group": member.config.group,
                "time": member.seams.clock.wall_us(),
                "leader": leader.node if leader is not None else None,
                "stood_still": leader.elections.get("stood_still") if leader is not None else None,
                "members": [row for row, _ in rows],
                "lists_of": lists_of,
                **lists,
            }
        )

    async def _row(self, name: NodeName, url: str) -> tuple[dict[str, Any], _Told | None]:
        """Asks one member. Returns its entry of the document, and its answer if it gave one."""
        row: dict[str, Any] = {"name": name, "url": url, "age_ms": None, "status": None, "error": None}
        clock = self._member.seams.clock
        began_s = clock.monotonic_s()
        try:
            body = await self._own() if name == self._member.name else await self._ask(name)
            told = _told.decode(body)
            if (said := _glance.decode(told.status).node) != name:
                raise WrongName(f"{said[:40]} answers at {url}")
        except TimeoutError:
            row["error"] = {"type": "unreachable", "detail": f"no answer within {MEMBER_S:g} s"}
        except msgspec.MsgspecError as error:
            row["error"] = {"type": BadBody.slug, "detail": f"no status: {error}"[:200]}
        except VlsnLogError as error:
            row["error"] = {"type": error.slug, "detail": str(error)[:500]}
        else:
            row["age_ms"] = round(1e3 * (clock.monotonic_s() - began_s))
            row["status"] = told.status
            return row, told
        return row, None

    async def _ask(self, name: NodeName) -> bytes:
        async with asyncio.timeout(MEMBER_S):
            body = await get(self._member, name, PEER_PATH)
        if len(body) > STATUS_BYTES_MAX:
            raise TooLarge(f"a status of {len(body)} bytes; at most {STATUS_BYTES_MAX}")
        return body
