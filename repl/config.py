"""The settings of a node and of the commands, and where they come from.

The sources of a setting, strongest first: the flag, the variable ``VLSNLOG_<NAME>``, the TOML file, the default. All
sources use the same name (``--segment-bytes``, ``VLSNLOG_SEGMENT_BYTES``, ``segment_bytes``). Sizes may be written as
``64MiB``. Paths in a file are relative to that file, so that a copied directory is a separate node:

    name = "n1"                        group = "demo"
    dir = "."                          listen = "127.0.0.1:7701"

Every error is a ``BadArgument`` that names the setting, where the value came from, and what to write instead.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from repl.cdc_settings import CdcSettings, cdc_settings
from repl.credentials.urls import check_url
from vlsn import limits
from vlsn.errors import BadArgument
from vlsn.ids import NodeName, is_name

ENVIRONMENT_PREFIX: Final = "VLSNLOG_"
DEFAULT_URL: Final = "http://127.0.0.1:7701"
DEFAULT_GROUP: Final = "vlsnlog"
FILE_ONLY: Final = frozenset({"cdc"})
"""Settings that are tables. They have neither a flag nor a variable."""
ANONYMOUS: Final = ("all", "append", "none")
"""Which roles a call without a token has. ``repl.auth.default_key`` has the default."""
LOG_FORMATS: Final = ("text", "json")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
CONFIG_BYTES_MAX: Final = 1 << 20
TLS_MODES: Final = ("off", "allow", "require")
ACK_POLICIES: Final = ("none", "majority", "all")

_PORT = re.compile(r"[0-9]{1,5}\Z")
_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_HOST = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?\Z")
_SIZE = re.compile(r"\s*(\d{1,19})\s*([A-Za-z]*)\s*\Z", re.ASCII)


def _about(text: str, *, low: float = 0, high: float = 1 << 62, choices: Iterable[str] = ()) -> dict[str, Any]:
    return {"text": text, "low": low, "high": high, "choices": tuple(choices)}


def _setting(default: Any, text: str, *, low: float = 0, high: float = 1 << 62, choices: Iterable[str] = ()) -> Any:
    return field(default=default, metadata=_about(text, low=low, high=high, choices=choices))


def _bytes(default: int, text: str, *, low: int = 1, high: int = 1 << 62) -> Any:
    return _setting(default, text, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """All settings of one node. ``members`` keeps its order, and always contains ``name``."""

    name: NodeName = field(metadata=_about("name of this node, one of the members"))
    dir: Path = field(metadata=_about("directory of its data"))
    listen: str = _setting("", "HOST:PORT to listen on; default: 127.0.0.1 and the port of its member URL")
    members: Mapping[NodeName, str] = field(metadata=_about("every member's name and URL"))
    hosts: tuple[str, ...] = _setting(
        (), "further hosts, HOST or HOST:PORT, by which a browser or a proxy may call this node; a list, or with commas"
    )
    group: str = _setting(DEFAULT_GROUP, "name of the group; a directory belongs to one group for ever")
    group_key: Path | None = field(
        default=None,
        metadata=_about("file of the key with which the members know each other; on loopback it is made by itself"),
    )
    tls: str = _setting("off", "whether the port speaks TLS: beside plain HTTP (allow), or alone", choices=TLS_MODES)
    tls_cert: Path | None = field(
        default=None, metadata=_about("certificate of this node, in PEM; read again when it changes")
    )
    tls_key: Path | None = field(default=None, metadata=_about("key of that certificate, in PEM without a password"))
    tls_ca: Path | None = field(
        default=None, metadata=_about("authorities of members and clients, in PEM; read again when they change")
    )
    anonymous: str | None = _setting(
        None,
        "roles of calls without a token: all, append (all but admin) or none; default: append on loopback with a key, "
        "else all",
        choices=ANONYMOUS,
    )
    insecure: bool = _setting(False, "whether the node may serve addresses beyond loopback without TLS, key and tokens")
    token_grace_s: float = _setting(
        60.0, "seconds without a master after which a node takes no token, as it may miss a revocation", low=1.0
    )
    log_level: str = _setting("info", "least severe level that is logged", choices=LOG_LEVELS)
    log_format: str = _setting("text", "lines of the log as text or as an object each", choices=LOG_FORMATS)

    segment_bytes: int = _bytes(
        limits.SEGMENT_BYTES, "size of a segment file", low=limits.SEGMENT_BYTES_MIN, high=limits.SEGMENT_BYTES_MAX
    )
    entry_bytes_max: int = _bytes(limits.ENTRY_BYTES_MAX, "largest entry accepted", high=limits.ENTRY_BYTES_MAX)
    key_bytes_max: int = _bytes(limits.KEY_BYTES_MAX, "largest key accepted", high=limits.KEY_BYTES_MAX)
    body_bytes_max: int = _bytes(limits.BODY_BYTES_MAX, "largest body of one append", high=limits.BODY_BYTES_MAX)
    bodies_in_flight_bytes_max: int = _bytes(
        limits.BODIES_IN_FLIGHT_BYTES_MAX, "bytes of request bodies in memory at once"
    )
    block_bytes_max: int = _bytes(
        limits.BLOCK_BYTES_MAX, "size of a block up to which appends are merged", high=limits.BLOCK_BYTES_MAX
    )
    queue_entries_max: int = _setting(limits.QUEUE_ENTRIES_MAX, "entries waiting to be logged", low=1)
    queue_bytes_max: int = _bytes(limits.QUEUE_BYTES_MAX, "bytes waiting to be logged", low=limits.QUEUE_BYTES_MIN)
    ring_bytes_max: int = _bytes(limits.RING_BYTES_MAX, "bytes of recent blocks kept in memory for feeders")
    unsynced_bytes_max: int = _bytes(limits.UNSYNCED_BYTES_MAX, "unsynced bytes past which a replica stops reading")
    free_bytes_min: int = _bytes(limits.FREE_BYTES_MIN, "free space below which appends are refused", low=0)
    index_map_bytes: int = _bytes(limits.INDEX_MAP_BYTES, "map size of the VLSN index", low=1 << 20)
    state_map_bytes: int = _bytes(limits.STATE_MAP_BYTES, "map size of the state store", low=1 << 20)
    retention_bytes: int = _bytes(0, "size of all segment files past which the oldest are removed; 0: never", low=0)
    retention_age_s: float = _setting(0.0, "seconds after its last entry when a segment is removed; 0: never")
    hold_bytes_max: int = _bytes(
        limits.HOLD_BYTES_MAX, "bytes of log kept for a replica or consumer that lags; 0: without limit", low=0
    )
    page_bytes: int = _bytes(
        limits.PAGE_BYTES,
        "size of a page of a destination; pages are read whole",
        low=limits.PAGE_BYTES_MIN,
        high=limits.PAGES_CACHE_BYTES_MAX,
    )
    pages_bytes_max: int = _bytes(
        0, "bytes of all pages; at this limit no more messages are paged; 0: without limit", low=0
    )
    pages_messages_max: int = _setting(0, "messages in all pages, the same limit; 0: without limit")
    cleaning_period_s: float = _setting(limits.CLEANING_PERIOD_S, "seconds between two cleanings", low=0.1)
    scrub_bytes_per_s: int = _bytes(
        limits.SCRUB_BYTES_PER_S, "bytes of sealed segments that are checked for damage in a second; 0: never", low=0
    )
    scrub_period_s: float = _setting(limits.SCRUB_PERIOD_S, "seconds between two checks of all segments", low=0.1)
    scan_bytes_per_s: int = _bytes(
        limits.SCAN_BYTES_PER_S, "bytes of segments sent to audits and scans in a second; 0: without limit", low=0
    )
    checkpoint_bytes: int = _bytes(
        limits.CHECKPOINT_BYTES, "bytes logged between checkpoints", low=limits.CHECKPOINT_BYTES_MIN
    )
    checkpoint_period_s: float = _setting(limits.CHECKPOINT_PERIOD_S, "seconds between checkpoints", low=0.1)
    idle_end_s: float = _setting(limits.IDLE_END_S, "seconds without appends until the synced end is stored", low=0.01)
    sync_interval_s: float = _setting(
        limits.NODE_SYNC_INTERVAL_S, "seconds until appends that do not wait for a sync are synced", low=0.01, high=60
    )
    roll_period_s: float = _setting(0.0, "seconds after which a segment is rolled; 0: never")
    ack_timeout_s: float = _setting(
        10.0, "seconds an append waits for acknowledgements, if the append names no timeout", low=0.001, high=600
    )
    heartbeat_s: float = _setting(0.2, "seconds between heartbeats on a quiet feed", low=0.01, high=1.0)
    election_timeout_s: float = _setting(
        1.0, "seconds of silence until a peer counts as gone; an election waits up to twice that", low=0.05
    )
    connect_timeout_s: float = _setting(5.0, "seconds to wait for a peer's answer", low=0.05)
    head_s: float = _setting(10.0, "seconds a client has to send the head of a request", low=0.1)
    idle_s: float = _setting(120.0, "seconds of silence between two requests until a connection is closed", low=0.1)
    readers_max: int = _setting(
        0, "most waiting readers (tails, long-polls); 0: as memory and file descriptors allow", high=1 << 20
    )
    cdc_buffer_bytes: int = _bytes(0, "least bytes of recent blocks in memory if there are consumers [[cdc]]", low=0)
    cdc: tuple[CdcSettings, ...] = field(default=(), metadata=_about("CDC consumers, tables of the config file"))
    ready_lag_vlsns_max: int = _setting(100_000, "lag in VLSNs above which /readyz reports not ready", low=0)

    def __post_init__(self) -> None:
        check_name("name", self.name)
        check_name("group", self.group)
        check_members(self.members)
        if self.name not in self.members:
            listed = ", ".join(self.members)
            raise BadArgument(f"members: {self.name!r} is not among them ({listed}); add it or correct `name`")
        if not self.listen:
            object.__setattr__(self, "listen", f"127.0.0.1:{urlsplit(self.url).port}")
        split_listen(self.listen)
        for host in self.hosts:
            if not _HOST.match(host):
                raise BadArgument(f"hosts: {host!r} is not understood; write it as HOST or HOST:PORT")
        for each in fields(self):
            _check_range(each, getattr(self, each.name))
        self._check_tls()
        self._check_together()

    def _check_tls(self) -> None:
        secure = self.url.startswith("https:")
        if self.tls == "off":
            if secure:
                raise BadArgument(f"tls: off, but the URL of {self.name} is {self.url}; set tls to allow or require")
            return
        for name in ("tls_cert", "tls_key", "tls_ca"):
            if getattr(self, name) is None:
                raise BadArgument(f"{name}: not given, and tls = {self.tls} needs it; see `vlsnlog certs --help`")
        if self.tls == "require" and not secure:
            raise BadArgument(
                f"tls: require, but the URL of {self.name} is {self.url}; move it to https:// first, by "
                "`vlsnlog group move NAME=URL`"
            )

    def _check_together(self) -> None:
        if self.heartbeat_s * 2 > self.election_timeout_s:
            raise BadArgument(
                f"heartbeat_s: {self.heartbeat_s} is more than half of election_timeout_s, {self.election_timeout_s}: "
                "a replica would count as gone between two heartbeats; lower it"
            )
        if 0 < self.scan_bytes_per_s < limits.SCAN_BYTES_PER_S_MIN:
            raise BadArgument(
                f"scan_bytes_per_s: {self.scan_bytes_per_s} is under {limits.SCAN_BYTES_PER_S_MIN}, at which an audit "
                "would give the node up as silent; raise it, or 0 for no limit"
            )
        if self.segment_bytes % limits.SEGMENT_BYTES_STEP:
            raise BadArgument(f"segment_bytes: {self.segment_bytes} is no multiple of {limits.SEGMENT_BYTES_STEP}")
        if self.entry_bytes_max > self.body_bytes_max:
            raise BadArgument(f"entry_bytes_max: {self.entry_bytes_max} is over body_bytes_max, {self.body_bytes_max}")
        if self.body_bytes_max > self.bodies_in_flight_bytes_max:
            raise BadArgument(
                f"body_bytes_max: {self.body_bytes_max} is over bodies_in_flight_bytes_max, "
                f"{self.bodies_in_flight_bytes_max}: such a body would never be taken"
            )

    @property
    def url(self) -> str:
        """The URL at which the other members reach this node."""
        return self.members[self.name]

    @property
    def host(self) -> str:
        return split_listen(self.listen)[0]

    @property
    def port(self) -> int:
        """The port to listen on; with 0 the operating system chooses one."""
        return split_listen(self.listen)[1]

    @property
    def first_member(self) -> NodeName:
        """The member whose name sorts first, which founds the group."""
        return min(self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandConfig:
    """The defaults of the commands that call nodes."""

    url: str = _setting(DEFAULT_URL, "URLs of nodes, separated by commas")
    acks: str = _setting("majority", "which nodes must have an append before it returns", choices=ACK_POLICIES)
    timeout: float = _setting(10.0, "seconds an append may take", low=0.001, high=600)
    format: str = _setting("raw", "how `read` prints an entry", choices=("raw", "json"))
    spark_master: str = _setting("local[2]", "Spark master of the audit")
    nodes: int = _setting(3, "nodes of a local cluster", low=1, high=64)
    base_port: int = _setting(7701, "port of a local cluster's first node", low=1, high=65_535)


NODE_SETTINGS: Final[dict[str, Field[Any]]] = {each.name: each for each in fields(NodeConfig)}
COMMAND_SETTINGS: Final[dict[str, Field[Any]]] = {each.name: each for each in fields(CommandConfig)}


def check_name(key: str, text: str) -> None:
    if not is_name(text):
        raise BadArgument(f"{key}: {text!r} is no name; use 1 to 32 of A-Z a-z 0-9 . _ -")


def check_members(members: Mapping[NodeName, str]) -> None:
    """Checks the members' names and URLs, and that no two members share a URL."""
    if not members:
        raise BadArgument("members: none given; list every member as NAME=URL, this node too")
    owners: dict[str, str] = {}
    for name, url in members.items():
        check_name("members", name)
        check_url(f"members: {name}", url)
        if url in owners:
            raise BadArgument(f"members: {owners[url]} and {name} both have {url}; give each its own URL")
        owners[url] = name


def split_listen(text: str) -> tuple[str, int]:
    """Splits ``HOST:PORT`` or ``[V6]:PORT``."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not _PORT.match(port) or int(port) > 65_535:
        raise BadArgument(f"listen: {text!r} is not understood; write it as HOST:PORT, such as 127.0.0.1:7701")
    return host.removeprefix("[").removesuffix("]"), int(port)


def parse_members(pairs: Iterable[str]) -> dict[NodeName, str]:
    """Parses ``NAME=URL`` pairs, as ``--member`` takes them."""
    members: dict[NodeName, str] = {}
    for pair in pairs:
        name, equals, url = pair.partition("=")
        if not equals:
            raise BadArgument(f"member: {pair!r} is not understood; write it as NAME=URL")
        if name in members:
            raise BadArgument(f"member: {name} is given twice; list each member once")
        members[NodeName(name)] = url.rstrip("/")
    return members


@dataclass(frozen=True, slots=True)
class Resolved:
    """Resolved settings: the values by name, and the source of each value (``flag``, ``environment``, a file's name,
    ``default``)."""

    values: dict[str, Any]
    sources: dict[str, str]


def resolve(
    settings: Mapping[str, Field[Any]],
    *,
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    path: Path | None = None,
) -> Resolved:
    """Takes each of ``settings`` from the strongest source that has it. A setting without a source is left out. A flag
    with the value None counts as absent."""
    document = read_file(path) if path is not None else {}
    environment = os.environ if environment is None else environment
    result = Resolved({}, {})
    for name, each in settings.items():
        variable = ENVIRONMENT_PREFIX + ("MEMBER" if name == "members" else name.upper())
        if flags is not None and flags.get(name) is not None:
            raw, source, place = flags[name], "flag", "--" + name.replace("_", "-")
        elif environment.get(variable) and name not in FILE_ONLY:
            raw, source, place = environment[variable], "environment", variable
        elif name in document:
            assert path is not None
            raw, source, place = document[name], path.name, f"{path}: {name}"
            if str(each.type).startswith("Path"):
                raw = path.parent / _text(raw, place)
        elif each.default is not MISSING:
            result.values[name], result.sources[name] = each.default, "default"
            continue
        else:
            continue
        result.values[name], result.sources[name] = _convert(each, raw, place), source
    return result


def read_file(path: Path) -> dict[str, Any]:
    """Reads a TOML config file. Raises ``BadArgument`` for an unknown key."""
    try:
        with path.open("rb") as file:
            data = file.read(CONFIG_BYTES_MAX + 1)
        if len(data) > CONFIG_BYTES_MAX:
            raise BadArgument(
                f"{path}: has more than {CONFIG_BYTES_MAX} bytes, and is no config file; correct --config"
            )
        text = data.decode("utf-8")
    except FileNotFoundError:
        raise BadArgument(f"{path}: there is no such config file; correct --config") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadArgument(
            f"{path}: cannot be read ({getattr(error, 'strerror', '') or error}); correct --config"
        ) from None
    try:
        document = tomllib.loads(text)
    # RecursionError means that the nesting is too deep, ValueError that a number is too long
    except (ValueError, RecursionError) as error:
        raise BadArgument(f"{path}: is not valid TOML, or gives a key or member twice: {error}") from None
    known = {**NODE_SETTINGS, **COMMAND_SETTINGS}
    for key in document:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            advice = f"did you mean {near[0]!r}?" if near else "`vlsnlog config` lists them"
            raise BadArgument(f"{path}: unknown key {key!r}; {advice}")
    return document


def toml_of(value: Any) -> str:
    """Returns a value as one line of TOML. The value may be a table or a list."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml_of(key)} = {toml_of(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_of, value)) + "]"
    # a TOML basic string accepts JSON's escapes, too, and must escape DEL, which JSON need not
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def load_node_config(
    *,
    path: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> NodeConfig:
    """Loads and checks all settings of the node. Raises ``BadArgument``."""
    values = resolve(NODE_SETTINGS, flags=flags, environment=environment, path=path).values
    for name in ("name", "dir", "members"):
        if name not in values:
            flag = {"name": "--name N", "dir": "--dir DIR", "members": "--member NAME=URL"}[name]
            where = f"in {path}" if path is not None else "in a --config file"
            raise BadArgument(f"{name}: not given; add it {where}, or {flag}")
    return NodeConfig(**values)


def _convert(each: Field[Any], raw: Any, place: str) -> Any:
    kind = str(each.type)
    if kind.startswith("Mapping"):
        if isinstance(raw, str):
            return parse_members(part.strip() for part in raw.split(",") if part.strip())
        if isinstance(raw, Mapping):
            return {NodeName(name): _text(url, f"{place}: {name}").rstrip("/") for name, url in raw.items()}
        if isinstance(raw, list | tuple):
            return parse_members(raw)
        raise BadArgument(f"{place}: must be a table of NAME = URL")
    if each.name == "cdc":
        return cdc_settings(raw, whole_size)
    if kind.startswith("tuple"):
        parts = raw.split(",") if isinstance(raw, str) else raw
        if not isinstance(parts, list | tuple):
            raise BadArgument(f"{place}: must be a list of strings")
        return tuple(text for part in parts if (text := _text(part, place).strip()))
    if kind.startswith("Path"):
        return Path(_text(raw, place)) if not isinstance(raw, Path) else raw
    if kind == "int":
        return _integer(raw, place, size="bytes" in each.name)
    if kind == "bool":
        return _truth(raw, place)
    if kind == "float":
        return _number(raw, place)
    text = _text(raw, place)
    choices = each.metadata["choices"]
    if choices and text.lower() not in choices:
        raise BadArgument(f"{place}: {text!r} is not one of {', '.join(choices)}")
    return text.lower() if choices else text


def _text(raw: Any, place: str) -> str:
    if not isinstance(raw, str):
        raise BadArgument(f"{place}: must be a string, not {raw!r}")
    return raw


def _truth(raw: Any, place: str) -> bool:
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and raw.lower() in ("true", "false"):
        return raw.lower() == "true"
    raise BadArgument(f"{place}: {raw!r} is neither true nor false")


def whole_size(raw: str | int, place: str) -> int:
    """Parses a number of bytes, such as 67108864 or ``64MiB``."""
    return _integer(raw, place, size=True)


def _integer(raw: Any, place: str, *, size: bool) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    match = _SIZE.match(raw) if isinstance(raw, str) else None
    unit = match.group(2).lower() if match else ""
    if match is None or unit not in _UNITS or (unit and not size):
        example = "such as 67108864 or 64MiB" if size else "such as 1000"
        raise BadArgument(f"{place}: {raw!r} is no whole number; write one {example}")
    return int(match.group(1)) * _UNITS[unit]


def _number(raw: Any, place: str) -> float:
    try:
        if isinstance(raw, bool):
            raise ValueError
        return float(raw)
    except (TypeError, ValueError):
        raise BadArgument(f"{place}: {raw!r} is no number; write seconds, such as 2.5") from None


def _check_range(each: Field[Any], value: Any) -> None:
    if isinstance(value, int | float):
        low, high = each.metadata["low"], each.metadata["high"]
        if not low <= value <= high:
            raise BadArgument(f"{each.name}: {value} is out of range; it must be {low} to {high}")
