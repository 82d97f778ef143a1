"""Options of the data source: their names, their values, and the uses in which each is allowed.

    .option("form", 100)   →   BadArgument: vlsnlog has no option 'form'; did you mean 'from'?

Spark changes option names to lower case. So option names are compared without case, and shown in errors as the
documentation writes them. Values are passed as text. All functions here are pure.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Final, TypeVar

from repl.credentials.bearer import check_path
from repl.tls_files import NO_FILES, TlsFiles
from vlsn.errors import BadArgument
from vlsn.ids import NUMBER_MAX, is_part
from vlsn.limits import KEY_BYTES_MAX, KIB, MIB
from vlsn.times import time_of

PARTITION_BYTES: Final = 32 * MIB
"""The bytes of log in one partition. Partitions are smaller if that is needed to keep all cores busy."""
PARTITION_BYTES_MIN: Final = 64 * KIB
PARTITION_BYTES_MAX: Final = 1 << 40
PATH_CHARS_MAX: Final = 4_096
SOURCES_MAX: Final = 64
"""The most sources of one group in one ``load``."""

_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SIZE: Final = re.compile(r"([0-9]{1,18})\s*([bkmg]?)(i?b)?\Z")
_FOUNDING: Final = re.compile(r"[0-9a-f]{16}-[1-9][0-9]{0,18}\Z")
_DIGITS: Final = re.compile(r"[0-9]{1,19}\Z")


class Use(Enum):
    """The four ways to use the data source, with the names that an error shows."""

    BATCH = "spark.read"
    STREAM = "spark.readStream"
    WRITE = "df.write"
    SINK = "df.writeStream"


class Mode(StrEnum):
    VISIBLE = "visible"
    """Mode visible: reads the entries that a majority has synced, each once, like every reader of the log."""
    PHYSICAL = "physical"
    """Mode physical: reads every frame (a block's envelope) of one copy as stored, including rolled-back, damaged and
    not yet durable ones."""


class Place(Enum):
    """A position of the log that is not a VLSN."""

    START = "start"
    END = "end"


@dataclass(frozen=True, slots=True)
class Option:
    """``parse`` raises ``ValueError`` that says which values are right. ``field`` is the name of the option's field in
    the options of its uses; empty if these derive something from it. Without ``shown``, errors do not repeat the value:
    it may be a secret that was passed by mistake."""

    name: str
    parse: Callable[[str], Any]
    uses: frozenset[Use]
    field: str = ""
    shown: bool = True


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


def mode(text: str) -> Mode:
    """Parses the name of a mode."""
    if text not in tuple(Mode):
        raise ValueError(" or ".join(Mode))
    return Mode(text)


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


def file(text: str) -> str:
    """Parses the path of a file that each executor has."""
    check_path("option 'tokenFile'", text)
    if not text.startswith("/") or "\0" in text:
        raise ValueError("an absolute path, of a file on each executor")
    return text


def reset(text: str) -> int | bool:
    """Parses the option that forgets a sink's state: a VLSN names the state to forget, true means the state of
    another query."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if _DIGITS.match(text) and 1 <= int(text) <= NUMBER_MAX:
        return int(text)
    raise ValueError("true, or the VLSN that the refusal names")


def pem_path(text: str) -> str:
    """Parses the path of a PEM file. Its content is refused, because Spark shows options in plans and pages."""
    if not text.strip() or len(text) > PATH_CHARS_MAX or "-----" in text or not text.isprintable():
        raise ValueError("the path of a PEM file that the driver and each executor have, never its content")
    return text


def _listed(text: str) -> tuple[str, ...]:
    found = json.loads(text)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError("a list of sources")
    return tuple(found)


_BATCH: Final = frozenset({Use.BATCH})
_STREAM: Final = frozenset({Use.STREAM})
READS: Final = _BATCH | _STREAM
WRITES: Final = frozenset({Use.WRITE, Use.SINK})
_VISIBLE_ONLY: Final = frozenset(
    {"from", "to", "since", "until", "keyPrefix", "failOnTrim", "atLeast", "lagMaxSeconds", "pushdown"}
)
EVERY: Final = frozenset(Use)
_SIZES: Final = size(PARTITION_BYTES_MIN, PARTITION_BYTES_MAX)
OPTIONS: Final = {
    option.name.lower(): option
    for option in (
        Option("path", str, EVERY),  # Spark stores the argument of .load(…) in this option
        Option("paths", _listed, EVERY),
        Option("mode", mode, _BATCH, "mode"),
        Option("from", vlsn, READS, "from_vlsn"),
        Option("to", vlsn, _BATCH, "to_vlsn"),
        Option("since", time, READS, "since_us"),
        Option("until", time, _BATCH, "until_us"),
        Option("keyPrefix", key, READS, "key_prefix"),
        Option("partitionBytes", _SIZES, READS, "partition_bytes"),
        Option("failOnTrim", switch, READS, "fail_on_trim"),
        Option("atLeast", number(1, NUMBER_MAX), READS, "at_least"),
        Option("lagMaxSeconds", number(0, 86_400), READS, "lag_max_s"),
        Option("maxBytesPerTrigger", _SIZES, _STREAM, "bytes_per_trigger"),
        Option("maxEntriesPerTrigger", number(1, NUMBER_MAX), _STREAM, "entries_per_trigger"),
        Option("url", str, WRITES),
        Option("sink", name, WRITES, "sink"),
        Option("sinkReset", reset, WRITES, "reset"),
        Option("batchBytesMax", _SIZES, WRITES, "batch_bytes_max"),
        Option("giveUpSeconds", number(1, 86_400), EVERY),
        Option("group", founding, EVERY),
        Option("tlsCa", pem_path, EVERY, shown=False),
        Option("tlsCert", pem_path, EVERY, shown=False),
        Option("tlsKey", pem_path, EVERY, shown=False),
        Option("tokenFile", file, EVERY),
        Option("run", name, frozenset({Use.WRITE}), "run"),
        Option("checkpointLocation", str, frozenset({Use.SINK})),  # an option of Spark itself
        Option("pushdown", switch, _BATCH, "pushdown"),
    )
}


TLS_OPTIONS: Final = ("tlsCa", "tlsCert", "tlsKey")
_SECRET: Final = "token"
_OF_A_CATALOG: Final = "provider"
"""A property that Spark's catalogs add to the options of their tables, and no user sets."""
TABLES: Final = (
    "PySpark gives the options of a table in its catalog to no Python data source, so a table cannot say which log it "
    "is: CREATE TEMPORARY VIEW name USING vlsnlog OPTIONS (path 'URL,URL'), or say it in each query: "
    "FROM name WITH (path = 'URL,URL')"
)
"""The hint for a user who creates a table, or reads one without a source."""


def check_names(given: Mapping[str, str]) -> None:
    """Raises ``BadArgument`` for an unknown option, with the name that was probably meant, and for the options of a
    catalog's table."""
    if _OF_A_CATALOG in map(str.lower, given):
        raise BadArgument(f"CREATE TABLE … USING vlsnlog: {TABLES}")
    if _SECRET in map(str.lower, given):
        raise BadArgument(
            "option 'token' would be shown in plans and logs: put the token into a file of mode 0600 on each executor, "
            "and name it by tokenFile, or set VLSNLOG_TOKEN in the executors' environment"
        )
    for name in sorted(given):
        if name.lower() not in OPTIONS:
            near = difflib.get_close_matches(name.lower(), OPTIONS, n=1, cutoff=0.5)
            known = ", ".join(option.name for option in OPTIONS.values() if not option.name.startswith("path"))
            hint = f"did you mean {OPTIONS[near[0]].name!r}?" if near else f"there are: {known}"
            raise BadArgument(f"vlsnlog has no option {name!r}; {hint}")


def parsed(given: Mapping[str, str], use: Use) -> dict[str, Any]:
    """Parses all options, by their own names. Raises ``BadArgument`` for an unknown option, an option of another
    use, or a wrong value."""
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
            shown = repr(text if len(text) <= 60 else text[:60] + "…") if option.shown else "something else"
            raise BadArgument(f"option {option.name!r} is {shown}; it must be {error}") from None
    return values


def fields_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parsed options that are stored in a field, by the field's name."""
    fields = {OPTIONS[name.lower()].field: value for name, value in values.items()}
    return {field: value for field, value in fields.items() if field}


def sources_of(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the sources of ``load``, which are separated by commas: each once, in order. Raises ``BadArgument``."""
    texts = [values["path"]] if "path" in values else []
    texts += values.get("paths", ())
    found = tuple(dict.fromkeys(part.strip() for text in texts for part in text.split(",") if part.strip()))
    if not found:
        raise BadArgument(f"vlsnlog needs a source: .load('URL,URL') or .load('DIR'). {TABLES}")
    if len(found) > SOURCES_MAX:
        raise BadArgument(f"{len(found)} sources; one group has at most {SOURCES_MAX}")
    return found


def tls_of(values: Mapping[str, Any], sources: Sequence[str]) -> TlsFiles:
    """Returns the files of TLS. Raises ``BadArgument`` if there are some and no source is called by https."""
    named = [option for option in TLS_OPTIONS if option in values]
    if named and not any(text.startswith("https://") for text in sources):
        raise BadArgument(f"option {named[0]!r} is for nodes' https:// URLs, and no source has one")
    return TlsFiles(*(values.get(option, "") for option in TLS_OPTIONS))


@dataclass(frozen=True, slots=True)
class Asked:
    """How sources are read: ``group`` is the required identity (empty: any); a node that does not answer fails after
    ``give_up_s`` seconds (0: the default). ``tls``: the files for calls of https; those of the environment take the
    place of empty ones. ``token_file`` is a path on each executor (empty: the environment's token)."""

    group: str = ""
    give_up_s: float = 0.0
    tls: TlsFiles = NO_FILES
    token_file: str = ""


AS_USUAL: Final = Asked()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The checked options of a batch read, or of a stream's beginning. ``from_vlsn`` and ``to_vlsn`` are inclusive.
    The time ``until_us`` is exclusive, so that one day's read ends where the next begins."""

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
    at_least: int = 0
    lag_max_s: int | None = None
    pushdown: bool = False


Read = TypeVar("Read", bound=ReadOptions)


def read_options(given: Mapping[str, str], use: Use) -> ReadOptions:
    """Parses the options of a read. Raises ``BadArgument``, before any source is opened."""
    return options_of(ReadOptions, given, use)


def options_of(kind: type[Read], given: Mapping[str, str], use: Use) -> Read:
    """Parses the options of a read of any kind. Raises as ``read_options``."""
    values = parsed(given, use)
    for one, other in (("from", "since"), ("to", "until")):
        if one in values and other in values:
            raise BadArgument(f"options {one!r} and {other!r}: only one of them says where it is")
    sources = sources_of(values)
    asked = Asked(
        values.get("group", ""),
        values.get("giveUpSeconds", 0.0),
        tls_of(values, sources),
        values.get("tokenFile", ""),
    )
    options = kind(sources=sources, asked=asked, **fields_of(values))
    first, last = options.from_vlsn, options.to_vlsn
    if isinstance(first, int) and isinstance(last, int) and last < first:
        raise BadArgument(f"option 'to' is {last}, before 'from', {first}")
    if options.since_us is not None and options.until_us is not None and options.until_us < options.since_us:
        raise BadArgument("option 'until' is before 'since'")
    of_nodes = {"lagMaxSeconds"} if use is Use.BATCH else {"atLeast", "lagMaxSeconds"}
    if of_nodes & values.keys() and not all(text.startswith(("http://", "https://")) for text in options.sources):
        name = min(of_nodes & values.keys())
        raise BadArgument(f"option {name!r} is asked of running nodes: load their http:// URLs, and no directory")
    if options.mode is Mode.PHYSICAL:
        visible_only = sorted(_VISIBLE_ONLY & values.keys())
        if visible_only:
            raise BadArgument(
                f"option {visible_only[0]!r} is for mode=visible; filter the rows of mode=physical instead"
            )
    return options
