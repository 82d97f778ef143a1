"""Descriptions of HTTP calls, from which ``GET /v1/openapi.json`` is made (``repl/node/openapi.py``).

A description stands beside its route and holds data only. It is a constant of that module: its ranges are the named
limits that the route checks. The role of a call, and whether it goes to the master, are those of its route.

    Call("read", "GET", "/v1/entries", "Read entries", parameters=(whole("limit", …),), answers=(ok(…),), errors=READS)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Any, Final, NamedTuple

from repl.web.limits import CONFIRM_S, LAG_S_MAX, PEER_BODY_BYTES_MAX, TIMEOUT_S, TIMEOUT_S_MAX, WAIT_S_MAX
from repl.web.query import VLSN_MAX
from vlsn.errors import (
    BadArgument,
    BadBody,
    Damaged,
    FeedRefused,
    Forbidden,
    GroupBusy,
    Halted,
    InsufficientReplicas,
    Lagging,
    Misdirected,
    NoSegment,
    NoSpace,
    NotFound,
    NotInLog,
    NotListed,
    NotMaster,
    NotYet,
    OutcomeUnknown,
    QueueFull,
    Restoring,
    StaleSession,
    StaleTerm,
    StrongerDurability,
    TooFarBehind,
    TooLarge,
    Trimmed,
    Unauthorized,
    UnsupportedType,
    VlsnLogError,
    WrongGroup,
    WrongIncarnation,
    WrongName,
    WrongVersion,
)

Schema = Mapping[str, Any] | type | UnionType
"""A JSON schema, or a ``msgspec`` structure or several, whose schema is made from its fields."""
Errors = frozenset[type[VlsnLogError]]
JSON: Final = "application/json"
OCTETS: Final = "application/octet-stream"


class Parameter(NamedTuple):
    """A parameter of the query, of the path, or a header."""

    name: str
    text: str
    schema: Mapping[str, Any]
    place: str = "query"
    required: bool = False


class Answer(NamedTuple):
    """An answer without an error. ``content`` has a schema for each content type, ``headers`` a text for each name."""

    status: int
    text: str
    content: Mapping[str, Schema] = {}
    headers: Mapping[str, str] = {}


class Call(NamedTuple):
    """One method of one path. ``group`` is the task that the reference shows the call under."""

    group: str
    method: str
    path: str
    title: str
    parameters: tuple[Parameter, ...] = ()
    answers: tuple[Answer, ...] = ()
    errors: Errors = frozenset()
    """The errors of the call, besides those that every call may have (``EVERY``)."""
    body: Mapping[str, Schema] = {}
    """The schema of the body for each content type that the call reads."""
    body_required: bool = True
    text: str = ""
    messages: str = ""
    """The grammar of a WebSocket's messages."""
    example: str = ""
    """Arguments of curl that show the call, with ``$URL`` as the node."""


# Errors that several calls share.

EVERY: Final[Errors] = frozenset(
    {BadArgument, Unauthorized, StaleSession, Forbidden, Misdirected, UnsupportedType, WrongGroup, WrongName}
    | {WrongVersion, NotMaster, VlsnLogError}
)
"""The errors that every call may have: a bad query, the checks before a route, and a fault of the node."""
OPEN: Final[Errors] = frozenset({NotMaster, Restoring, Halted, Damaged})
"""The errors of calls that need an open log."""
ORDERED: Final[Errors] = frozenset({BadBody, TooLarge})
"""The errors of calls whose JSON body is read."""
CONFIRM: Final[Errors] = OPEN | {Lagging, TooFarBehind, QueueFull}
READS: Final[Errors] = CONFIRM | {NotInLog, NotYet, Trimmed}
LOGGED: Final[Errors] = (
    OPEN
    | ORDERED
    | {QueueFull, NoSpace, NoSegment, InsufficientReplicas, OutcomeUnknown, StrongerDurability, WrongVersion}
)
"""The errors of calls that log an entry."""
NAMED: Final[Errors] = LOGGED | {NotFound, StaleTerm, GroupBusy, Lagging}
"""The errors of calls that set or delete a name in the small state."""
MEMBERS: Final[Errors] = OPEN | ORDERED | {FeedRefused, NotListed, StaleTerm, WrongIncarnation, QueueFull, NotFound}


# Schemas.

WHOLE: Final = {"type": "integer", "minimum": 0}
NUMBER: Final = {"type": "number", "minimum": 0}
TEXT: Final = {"type": "string"}
FLAG: Final = {"type": "boolean"}
OBJECT: Final = {"type": "object"}
LIST: Final = {"type": "array", "items": OBJECT}
TEXTS: Final = {"type": "array", "items": TEXT}
BYTES: Final[Mapping[str, Any]] = {}
"""Any bytes; OpenAPI 3.1 describes a binary body by an empty schema."""
NOTHING: Final = {"type": "object", "maxProperties": 0}
"""An empty JSON object: the body of a call whose parameters are all in its URL."""
EMPTY: Final[Mapping[str, Schema]] = {JSON: NOTHING}
VLSN_OR_PLACE: Final = {"oneOf": [{"type": "integer", "minimum": 1}, {"enum": ["start", "end"]}]}


def maybe(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema of a field that may be null."""
    return {"anyOf": [schema, {"type": "null"}]}


def record(fields: Mapping[str, Mapping[str, Any]], optional: Iterable[str] = ()) -> dict[str, Any]:
    """Returns the schema of an object with exactly these fields."""
    required = [name for name in fields if name not in set(optional)]
    return {"type": "object", "properties": dict(fields), "required": required, "additionalProperties": False}


# Parameters.


def whole(name: str, text: str, low: int, high: int, default: int | None = None) -> Parameter:
    return Parameter(name, text, _default({"type": "integer", "minimum": low, "maximum": high}, default))


def seconds(name: str, text: str, low: float, high: float, default: float | None = None) -> Parameter:
    return Parameter(name, text, _default({"type": "number", "minimum": low, "maximum": high}, default))


def choice(name: str, text: str, choices: Iterable[str], default: str | None = None) -> Parameter:
    return Parameter(name, text, _default({"type": "string", "enum": list(choices)}, default))


def words(name: str, text: str, pattern: str | None = None, **more: Any) -> Parameter:
    return Parameter(name, text, {"type": "string", **({"pattern": pattern} if pattern else {}), **more})


def in_path(name: str, text: str, schema: Mapping[str, Any]) -> Parameter:
    return Parameter(name, text, schema, "path", True)


def required(parameter: Parameter) -> Parameter:
    return parameter._replace(required=True)


def header(name: str, text: str, schema: Mapping[str, Any] = TEXT) -> Parameter:
    return Parameter(name, text, schema, "header")


def _default(schema: dict[str, Any], default: float | str | None) -> dict[str, Any]:
    return schema if default is None else {**schema, "default": default}


def ok(schema: Schema, text: str = "Done.", *, status: int = 200, kind: str = JSON, **headers: str) -> Answer:
    """Describes an answer with one content type. The headers' names are written with ``_`` in place of ``-``."""
    return Answer(status, text, {kind: schema}, {name.replace("_", "-"): said for name, said in headers.items()})


def known(*parameters: Parameter) -> frozenset[str]:
    """Returns the names of the query's parameters, as ``query.only`` takes them."""
    return frozenset(each.name for each in parameters if each.place == "query")


HEX16: Final = {"type": "string", "pattern": "^[0-9a-f]{16}$"}
NAME: Final = {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$"}
NAME_IN_PATH: Final = in_path("name", "A name: 1–64 of `[A-Za-z0-9._-]`, but not `.` or `..`.", NAME)
SLASHED_NAME: Final = in_path(
    "name",
    "A name, or two names with a slash between.",
    {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}(/[A-Za-z0-9._-]{1,64})?$"},
)
TIMEOUT: Final = seconds(
    "timeout", "Seconds until the call is answered as `outcome-unknown`.", 0.001, TIMEOUT_S_MAX, TIMEOUT_S
)
WAIT: Final = seconds("wait", "Seconds to wait for the first entry.", 0.0, WAIT_S_MAX, 0.0)
AT: Final = whole("at", "Only if the COMMIT at this VLSN has set the present value; 0: there is none.", 0, VLSN_MAX)
CONFIRMED: Final = (
    choice("consistency", "`linearizable`: every entry acknowledged before.", ("durable", "linearizable"), "durable"),
    whole("at_least", "The VLSN that must be durable on this node.", 1, VLSN_MAX),
    seconds("lag_max", "The largest lag of this node, in seconds.", 0.0, LAG_S_MAX),
    seconds("timeout", "Seconds to wait until this node is as new as asked.", 0.001, WAIT_S_MAX, CONFIRM_S),
)
"""The parameters that require how new a node is."""
JSON_BODY: Final = f"The body has at most {PEER_BODY_BYTES_MAX:,} bytes."
