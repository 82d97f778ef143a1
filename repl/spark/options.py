"""Options of the data source: names as the docs write them, what each may be, and where it may stand.

    .option("form", 100)   →   BadArgument: vlsnlog has no option 'form'; did you mean 'from'?

Spark lower-cases names on their way, so they are looked up without case and told in ours.  Values come as text.  Pure.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Final

from vlsn.errors import BadArgument
from vlsn.ids import NUMBER_MAX, is_part
from vlsn.limits import KEY_BYTES_MAX, KIB, MIB
from vlsn.times import time_of

PARTITION_BYTES: Final = 32 * MIB
"""Bytes of log in a partition, unless fewer keep all cores at work."""
PARTITION_BYTES_MIN: Final = 64 * KIB
PARTITION_BYTES_MAX: Final = 1 << 40
SOURCES_MAX: Final = 64
"""Sources of one group in one ``load``."""

_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SIZE: Final = re.compile(r"([0-9]{1,18})\s*([bkmg]?)(i?b)?\Z")
_FOUNDING: Final = re.compile(r"[0-9a-f]{16}-[1-9][0-9]{0,18}\Z")
_DIGITS: Final = re.compile(r"[0-9]{1,19}\Z")


class Use(Enum):
    """The four ways to use the source, as an error names them."""

    BATCH = "spark.read"
    STREAM = "spark.readStream"
    WRITE = "df.write"
    SINK = "df.writeStream"


class Mode(StrEnum):
    VISIBLE = "visible"
    """The entries that a majority has synced, each once: what every reader of the log sees."""
    PHYSICAL = "physical"
    """Every frame of one copy as it lies there, with what was rolled back, may be yet, or is damaged."""


class Place(Enum):
    """A place of the log that is not a VLSN."""

    START = "start"
    END = "end"


@dataclass(frozen=True, slots=True)
class Option:
    """``parse`` raises ``ValueError`` with what a value must be."""

    name: str
    parse: Callable[[str], Any]
    uses: frozenset[Use]


def vlsn(text: str) -> int | Place:
    """Parses a VLSN, or one of ``start`` and ``end``."""
    if text in ("start", "end"):
        return Place(text)
    if _DIGITS.match(text) and 1 <= int(text) <= NUMBER_MAX:
        return int(text)
    raise ValueError("a VLSN from 1 on, or start, or end")


def time(text: str) -> int:
    """Parses ISO 8601, UTC without an offset, into µs since the epoch."""
    try:
        return time_of(text)
    except BadArgument:
        raise ValueError("a time such as 2026-01-31T12:00:00Z") from None


def size(low: int, high: int) -> Callable[[str], int]:
    """Makes a parser of bytes in a range: ``1048576``, ``1m``, ``1MiB``."""

    def parse(text: str) -> int:
        match = _SIZE.match(text.strip().lower())
        if match is not None:
            count = int(match[1]) * _UNITS[match[2]]
            if low <= count <= high and not (match[2] in ("", "b") and match[3] == "ib"):
                return count
        raise ValueError(f"bytes, {low} to {high}, such as 32m")

    return parse


def number(low: int, high: int) -> Callable[[str], int]:
    """Makes a parser of a whole number in a range."""

    def parse(text: str) -> int:
        if _DIGITS.match(text) and low <= int(text) <= high:
            return int(text)
        raise ValueError(f"a whole number, {low} to {high}")

    return parse


def switch(text: str) -> bool:
    """Parses ``true`` or ``false``."""
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def one_of(*names: str) -> Callable[[str], str]:
    """Makes a parser of one of these words."""

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(" or ".join(names))
        return text

    return parse


def key(text: str) -> bytes:
    """Parses text into the bytes of a key, or of its beginning."""
    data = text.encode("utf-8", "surrogateescape")
    if len(data) > KEY_BYTES_MAX:
        raise ValueError(f"at most {KEY_BYTES_MAX} bytes, as every key")
    return data


def name(text: str) -> str:
    """Parses the name of a sink or of a run."""
    if not is_part(text):
        raise ValueError("1 to 64 of [A-Za-z0-9._-], not . or ..")
    return text


def founding(text: str) -> str:
    """Parses a group's identity."""
    if not _FOUNDING.match(text):
        raise ValueError("a group's identity, as its nodes' status has it: 9f1c04aa52b0e371-1")
    return text


def reset(text: str) -> int | bool:
    """Parses what is to be forgotten of a sink: the state that a VLSN has set, or that of another query."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if _DIGITS.match(text) and 1 <= int(text) <= NUMBER_MAX:
        return int(text)
    raise ValueError("true, or the VLSN that the refusal names")


def _listed(text: str) -> tuple[str, ...]:
    found = json.loads(text)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError("a list of sources")
    return tuple(found)


READS: Final = frozenset({Use.BATCH, Use.STREAM})
WRITES: Final = frozenset({Use.WRITE, Use.SINK})
EVERY: Final = frozenset(Use)
OPTIONS: Final = {
    option.name.lower(): option
    for option in (
        Option("path", str, EVERY),  # Spark's own, as it passes .load(…) on
        Option("paths", _listed, EVERY),
        Option("mode", one_of(*Mode), frozenset({Use.BATCH})),
        Option("from", vlsn, READS),
        Option("to", vlsn, frozenset({Use.BATCH})),
        Option("since", time, READS),
        Option("until", time, frozenset({Use.BATCH})),
        Option("keyPrefix", key, READS),
        Option("partitionBytes", size(PARTITION_BYTES_MIN, PARTITION_BYTES_MAX), READS),
        Option("failOnTrim", switch, READS),
        Option("maxBytesPerTrigger", size(PARTITION_BYTES_MIN, PARTITION_BYTES_MAX), frozenset({Use.STREAM})),
        Option("maxEntriesPerTrigger", number(1, NUMBER_MAX), frozenset({Use.STREAM})),
        Option("url", str, WRITES),
        Option("sink", name, WRITES),
        Option("sinkReset", reset, WRITES),
        Option("batchBytesMax", size(PARTITION_BYTES_MIN, PARTITION_BYTES_MAX), WRITES),
        Option("giveUpSeconds", number(1, 86_400), EVERY),
        Option("group", founding, EVERY),
        Option("run", name, frozenset({Use.WRITE})),
        Option("checkpointLocation", str, frozenset({Use.SINK})),  # Spark's own
        Option("pushdown", switch, frozenset({Use.BATCH})),
    )
}


def check_names(given: Mapping[str, str]) -> None:
    """Raises ``BadArgument`` for an option that there is none of, with the one that was probably meant."""
    for name in sorted(given):
        if name.lower() not in OPTIONS:
            near = difflib.get_close_matches(name.lower(), OPTIONS, n=1, cutoff=0.5)
            known = ", ".join(option.name for option in OPTIONS.values() if not option.name.startswith("path"))
            hint = f"did you mean {OPTIONS[near[0]].name!r}?" if near else f"there are: {known}"
            raise BadArgument(f"vlsnlog has no option {name!r}; {hint}")


def parsed(given: Mapping[str, str], use: Use) -> dict[str, Any]:
    """Parses all options that were given, by their own names. Raises ``BadArgument`` for one that is unknown, has its
    place elsewhere, or a value that it cannot have."""
    check_names(given)
    values: dict[str, Any] = {}
    for name in sorted(given):
        option, text = OPTIONS[name.lower()], str(given[name])
        if use not in option.uses:
            where = " and ".join(each.value for each in Use if each in option.uses)
            raise BadArgument(f"option {option.name!r} is for {where}, not for {use.value}")
        try:
            values[option.name] = option.parse(text)
        except ValueError as error:
            shown = text if len(text) <= 60 else text[:60] + "…"
            raise BadArgument(f"option {option.name!r} is {shown!r}; it must be {error}") from None
    return values


def sources_of(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the sources that ``load`` named, each once, in their order; commas part them. Raises ``BadArgument``."""
    texts = [values["path"]] if "path" in values else []
    texts += values.get("paths", ())
    found = tuple(dict.fromkeys(part.strip() for text in texts for part in text.split(",") if part.strip()))
    if not found:
        raise BadArgument("vlsnlog needs a source: .load('URL,URL') or .load('DIR')")
    if len(found) > SOURCES_MAX:
        raise BadArgument(f"{len(found)} sources; one group has at most {SOURCES_MAX}")
    return found


@dataclass(frozen=True, slots=True)
class Asked:
    """How sources are asked: which log is meant, by its group's identity (empty: any), and for how many seconds nodes
    that do not answer are asked again (0: what is usual)."""

    group: str = ""
    give_up_s: float = 0.0


AS_USUAL: Final = Asked()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of a batch or of a stream's beginning, checked. ``from_vlsn`` and ``to_vlsn`` are inclusive; the time
    ``until_us`` is exclusive, so that days follow on one another."""

    sources: tuple[str, ...]
    asked: Asked = AS_USUAL
    mode: Mode = Mode.VISIBLE
    from_vlsn: int | Place = Place.START
    to_vlsn: int | Place = Place.END
    since_us: int | None = None
    until_us: int | None = None
    key_prefix: bytes = b""
    partition_bytes: int = PARTITION_BYTES
    fail_on_trim: bool = True
    pushdown: bool = False


def read_options(given: Mapping[str, str], use: Use) -> ReadOptions:
    """Parses the options of a read. Raises ``BadArgument``, before any source is looked at."""
    values = parsed(given, use)
    for one, other in (("from", "since"), ("to", "until")):
        if one in values and other in values:
            raise BadArgument(f"options {one!r} and {other!r}: only one of them says where it is")
    options = ReadOptions(
        sources=sources_of(values),
        asked=Asked(values.get("group", ""), values.get("giveUpSeconds", 0.0)),
        mode=Mode(values.get("mode", Mode.VISIBLE)),
        from_vlsn=values.get("from", Place.START),
        to_vlsn=values.get("to", Place.END),
        since_us=values.get("since"),
        until_us=values.get("until"),
        key_prefix=values.get("keyPrefix", b""),
        partition_bytes=values.get("partitionBytes", PARTITION_BYTES),
        fail_on_trim=values.get("failOnTrim", True),
        pushdown=values.get("pushdown", False),
    )
    first, last = options.from_vlsn, options.to_vlsn
    if isinstance(first, int) and isinstance(last, int) and last < first:
        raise BadArgument(f"option 'to' is {last}, before 'from', {first}")
    if options.since_us is not None and options.until_us is not None and options.until_us < options.since_us:
        raise BadArgument("option 'until' is before 'since'")
    if options.mode is Mode.PHYSICAL:
        visible_only = sorted({"from", "to", "since", "until", "keyPrefix", "failOnTrim", "pushdown"} & values.keys())
        if visible_only:
            raise BadArgument(
                f"option {visible_only[0]!r} is for mode=visible; filter the rows of mode=physical instead"
            )
    return options
