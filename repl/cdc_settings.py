"""The settings of a node's CDC consumers: the tables ``[[cdc]]`` of its config file.

    [[cdc]]
    name = "orders"                          consumer = "shop.cdc:Orders"
    from = "start"                           options = { url = "postgresql:///shop" }

Every error is a ``BadArgument`` that names the table, the setting, and what to write instead.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from repl.cdc_options import check_shipped
from vlsn.errors import BadArgument
from vlsn.ids import NUMBER_MAX, is_name, is_part
from vlsn.limits import KIB, MIB

CONSUMERS_MAX: Final = 64
"""CDC consumers of one node: each has a process of its own."""
NAME_MAX: Final = 32
OPTIONS_BYTES_MAX: Final = 64 * 1024
MEMORY_BYTES: Final = 512 * MIB
MEMORY_BYTES_MIN: Final = 64 * MIB
AHEAD_BYTES: Final = 4 * MIB
AHEAD_BYTES_MIN: Final = 4 * KIB
RETRIES: Final = 10
START_TIMEOUT_S: Final = 60.0
EVENTS_TIMEOUT_S: Final = 60.0
_CONSUMER: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z|[a-z][a-z0-9_-]{0,63}\Z")


class CdcSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one consumer."""

    name: str
    consumer: str
    """``module:Class``, importable in the child, or the name of an entry point of the group ``vlsnlog.cdc``."""
    run_on: str = "node"
    """``node``: one on each node that has these settings, each with its own position. ``master``: one in the group."""
    from_: str | int = msgspec.field(default="start", name="from")
    """Where it begins when it has no position: a VLSN, ``start`` or ``end``."""
    commit: str = "batch"
    """``batch``: each position that it commits is stored. ``segment``: once a segment of the log."""
    options: dict[str, Any] = {}
    """The table that the consumer is told at its start."""
    memory_bytes_max: int = MEMORY_BYTES
    """Data that its process may have; past it allocations fail there."""
    ahead_bytes: int = AHEAD_BYTES
    """Bytes that its process is sent before it has taken what came before."""
    retries_max: int = RETRIES
    """Failures one after another, with no position committed in between, until it is parked."""
    start_timeout_s: float = START_TIMEOUT_S
    """Seconds in which its process is up and ``start`` has returned; twice that at the next try, up to 16 times."""
    events_timeout_s: float = EVENTS_TIMEOUT_S
    """Seconds in which a call of ``on_events`` returns, or its process is replaced."""


_KNOWN: Final = tuple(each.encode_name for each in msgspec.structs.fields(CdcSettings))


def cdc_settings(tables: object, size: Callable[[str, str], int]) -> tuple[CdcSettings, ...]:
    """Reads the tables ``[[cdc]]``; ``size`` parses such as ``512MiB``. Raises ``BadArgument``."""
    if not isinstance(tables, Sequence) or isinstance(tables, str | bytes):
        raise BadArgument("cdc: write each consumer as a table [[cdc]]")
    if len(tables) > CONSUMERS_MAX:
        raise BadArgument(f"cdc: {len(tables)} consumers; a node has {CONSUMERS_MAX} at most")
    read = tuple(_read(number, table, size) for number, table in enumerate(tables, 1))
    names = [each.name for each in read]
    for name in names:
        if names.count(name) > 1:
            raise BadArgument(f"cdc: two consumers are called {name!r}; each name stands for one position")
    return read


def _read(number: int, table: object, size: Callable[[str, str], int]) -> CdcSettings:
    place = f"[[cdc]] number {number}"
    if not isinstance(table, Mapping):
        raise BadArgument(f"{place}: is no table")
    for key in table:
        if key not in _KNOWN:
            near = difflib.get_close_matches(str(key), _KNOWN, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_KNOWN)}"
            raise BadArgument(f"{place}: unknown setting {str(key)[:40]!r}; {advice}")
    for key in ("name", "consumer"):
        if key not in table:
            raise BadArgument(f"{place}: has no {key}")
    if isinstance(table["name"], str):
        place = f"cdc {table['name'][:NAME_MAX]}"
    for key in ("memory_bytes_max", "ahead_bytes"):
        if isinstance(table.get(key), str):
            table = {**table, key: size(table[key], f"{place}: {key}")}
    try:
        settings = msgspec.convert(dict(table), CdcSettings)
    except msgspec.ValidationError as error:
        raise BadArgument(f"{place}: {error}") from None
    fault = _fault(settings)
    if fault:
        raise BadArgument(f"{place}: {fault}")
    try:
        check_shipped(settings.consumer, settings.run_on, settings.options, size)
    except BadArgument as error:
        raise BadArgument(f"{place}: {error}") from None
    return settings


def _fault(settings: CdcSettings) -> str:
    begins = settings.from_
    try:
        options = len(msgspec.json.encode(settings.options))
    except (TypeError, msgspec.EncodeError) as error:
        return f"options: {error}; use strings, numbers, lists and tables"
    checks = {
        "name: 1 to 32 of A-Z a-z 0-9 . _ -, not . or ..": is_name(settings.name) and is_part(settings.name),
        f"consumer: {settings.consumer[:80]!r} is not understood; write module:Class, or a short name": bool(
            _CONSUMER.match(settings.consumer)
        ),
        f"run_on: {settings.run_on[:20]!r} is neither node nor master": settings.run_on in ("node", "master"),
        f"commit: {settings.commit[:20]!r} is neither batch nor segment": settings.commit in ("batch", "segment"),
        f"from: {begins!r}; write a VLSN from 1 on, start or end": (
            begins in ("start", "end") if isinstance(begins, str) else 1 <= begins <= NUMBER_MAX
        ),
        f"options: {options} bytes of JSON; at most {OPTIONS_BYTES_MAX}": options <= OPTIONS_BYTES_MAX,
        f"memory_bytes_max: at least {MEMORY_BYTES_MIN}": MEMORY_BYTES_MIN <= settings.memory_bytes_max < 1 << 48,
        f"ahead_bytes: {AHEAD_BYTES_MIN} to {AHEAD_BYTES}": AHEAD_BYTES_MIN <= settings.ahead_bytes <= AHEAD_BYTES,
        "retries_max: 0 to 1000000": 0 <= settings.retries_max <= 1_000_000,
        "start_timeout_s: 0.1 to 86400": 0.1 <= settings.start_timeout_s <= 86_400,
        "events_timeout_s: 0.1 to 86400": 0.1 <= settings.events_timeout_s <= 86_400,
    }
    return next((said for said, holds in checks.items() if not holds), "")
