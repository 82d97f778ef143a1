"""The settings of a node's CDC consumers: the tables ``[[cdc]]`` of its config file.

    [[cdc]]
    name = "orders"                          consumer = "shop.cdc:Orders"
    from = "start"                           options = { url = "postgresql:///shop" }

The options of the consumers that are part of vlsnlog (``SHIPPED``) are checked here as well, before a child process
starts. The child reads the options with the same classes, and checks what depends on its machine, such as a secret's
file.

Every error is a ``BadArgument`` that names the table, the setting, and what to write instead.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from repl.credentials.bearer import check_path
from vlsn.errors import BadArgument
from vlsn.ids import NUMBER_MAX, is_name, is_part
from vlsn.limits import KIB, MIB

T = TypeVar("T", bound=msgspec.Struct)
Size = Callable[[str, str], int]
"""Parses a size such as ``64MiB``. The second argument is the name of the setting. Raises ``BadArgument``."""
SIZES: Final = "_bytes"
"""The names of settings that may be written as ``64MiB`` contain this text."""
CONSUMERS_MAX: Final = 64
"""The most CDC consumers of one node. Each consumer runs in its own process."""
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
URLS_MAX: Final = 32
URL_MAX: Final = 2048
PATTERN: Final = "{consumer}-{first}-{last}"
PATTERN_PLACES: Final = ("consumer", "node", "group", "first", "last", "date", "hour")
PATTERN_PLACE: Final = re.compile(r"\{([^{}]*)\}")
PATTERN_MAX: Final = 200
_PATTERN_REST: Final = re.compile(r"[A-Za-z0-9._=/-]*\Z")
_TABLE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,62}\Z")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}\Z")
TimeoutS = Annotated[float, msgspec.Meta(ge=0.1, le=86_400.0)]


class CdcSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one CDC consumer."""

    name: str
    """The name of the consumer, under which its position is stored: 1 to 32 of A-Z a-z 0-9 . _ -."""
    consumer: str
    """``module:Class``, which the child imports, or the name of an entry point of the group ``vlsnlog.cdc``."""
    run_on: str = "node"
    """``node``: the consumer runs on each node that has these settings, each with a separate position. ``master``: one
    consumer runs in the group."""
    from_: str | int = msgspec.field(default="start", name="from")
    """Where a consumer without a position begins: a VLSN, ``start`` or ``end``."""
    commit: str = "batch"
    """``batch``: each position that the consumer commits is stored. ``segment``: a position is stored once for each
    segment of the log."""
    options: dict[str, Any] = {}
    """The options that the consumer receives at its start."""
    memory_bytes_max: int = MEMORY_BYTES
    """The most bytes of data that the consumer's process may have; beyond this, allocations fail in the process."""
    ahead_bytes: int = AHEAD_BYTES
    """The most bytes that are sent to the process before it has processed the bytes sent earlier."""
    retries_max: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = RETRIES
    """After this many failures in a row, with no position committed in between, the consumer is parked (stopped until a
    person acts)."""
    start_timeout_s: TimeoutS = START_TIMEOUT_S
    """The process must start, and ``start`` must return, within this many seconds. The limit doubles with each further
    start, up to 16 times."""
    events_timeout_s: TimeoutS = EVENTS_TIMEOUT_S
    """A call of ``on_events`` must return within this many seconds; otherwise its process is replaced."""


def cdc_settings(tables: object, size: Size) -> tuple[CdcSettings, ...]:
    """Reads the tables ``[[cdc]]``. Raises ``BadArgument``."""
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


def _read(number: int, table: object, size: Size) -> CdcSettings:
    place = f"[[cdc]] number {number}"
    if not isinstance(table, Mapping):
        raise BadArgument(f"{place}: is no table")
    if isinstance(table.get("name"), str):
        place = f"cdc {table['name'][:NAME_MAX]}"
    with _at(place):
        for key in ("name", "consumer"):
            if key not in table:
                raise BadArgument(f"has no {key}")
        settings = _convert(CdcSettings, table, size, "setting")
        if fault := _fault(settings):
            raise BadArgument(fault)
        _check_shipped(settings, size)
    return settings


@contextmanager
def _at(place: str) -> Iterator[None]:
    """Adds ``place`` to the message of an error raised inside."""
    try:
        yield
    except BadArgument as error:
        raise BadArgument(f"{place}: {error}") from None


def _convert(kind: type[T], table: Mapping[str, Any], size: Size, what: str) -> T:
    """Reads a table as a ``kind``. ``what`` is the word for a field of the table in error texts. Raises
    ``BadArgument``."""
    known = [each.encode_name for each in msgspec.structs.fields(kind)]
    for name in table:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise BadArgument(f"unknown {what} {str(name)[:40]!r}; {advice}")
    read = {
        name: size(value, name) if SIZES in name and isinstance(value, str) else value for name, value in table.items()
    }
    try:
        return msgspec.convert(read, kind)
    except msgspec.ValidationError as error:
        said, _, place = str(error).partition(" - at `$.")
        raise BadArgument(f"{place.rstrip('`')}: {said}" if place else said) from None


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
    }
    return next((said for said, holds in checks.items() if not holds), "")


# Options of shipped consumers.


class Checked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options with rules that their types cannot express."""

    def check(self) -> None:
        """Checks the rules that types cannot express. Raises ``BadArgument``."""


C = TypeVar("C", bound=Checked)


class JsonLinesOptions(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of ``jsonl``."""

    directory: str
    """The absolute path of the directory for the files."""
    rotate_bytes: Annotated[int, msgspec.Meta(ge=64 * KIB, le=256 * MIB)] = 64 * MIB
    """A file is closed once it has this many bytes. A file may exceed the limit by the events of one call, which are 4
    MiB or one entry."""
    rotate_s: Annotated[float, msgspec.Meta(ge=1.0, le=31 * 86_400.0)] = 3600.0
    """A file is closed this many seconds after its first event, even if no other event comes."""
    compress: Literal["none", "gzip"] = "none"
    """The compression of closed files. The open file is not compressed."""
    pattern: str = PATTERN
    """The names of the files, relative to the directory. ``{consumer}``, ``{node}``, ``{group}``, ``{first}``,
    ``{last}``, ``{date}`` and ``{hour}`` are replaced by their values; ``{first}`` is required."""

    def check(self) -> None:
        _check_files(self.directory, self.pattern)


class ParquetOptions(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of ``parquet``."""

    directory: str
    """The absolute path of the directory for the files."""
    file_rows: Annotated[int, msgspec.Meta(ge=1, le=100_000_000)] = 1_000_000
    """A file is closed once it has this many rows."""
    file_bytes: Annotated[int, msgspec.Meta(ge=MIB, le=1024 * MIB)] = 128 * MIB
    """A file is closed once it has this many bytes of keys and values, before compression."""
    file_s: Annotated[float, msgspec.Meta(ge=1.0, le=86_400.0)] = 300.0
    """A file is closed this many seconds after its first event."""
    group_bytes: Annotated[int, msgspec.Meta(ge=64 * 1024, le=64 * MIB)] = 16 * MIB
    """The bytes of keys and values in one row group. A row group is kept in memory until it is complete."""
    compression: Literal["none", "snappy", "gzip", "zstd", "lz4"] = "zstd"
    """The compression of the columns."""
    pattern: str = PATTERN
    """The names of the files, relative to the directory. ``{consumer}``, ``{node}``, ``{group}``, ``{first}``,
    ``{last}``, ``{date}`` and ``{hour}`` are replaced by their values; ``{first}`` is required."""

    def check(self) -> None:
        if find_spec("pyarrow") is None:
            raise BadArgument("parquet needs vlsnlog[arrow], which is not installed: pip install 'vlsnlog[arrow]'")
        _check_files(self.directory, self.pattern)


class MirrorOptions(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of ``mirror``."""

    url: str
    """The nodes of the other group, each as ``http://HOST:PORT`` or ``https://HOST:PORT``, separated by commas."""
    ca_file: str = ""
    """The authorities to trust on ``https://``; "" for the system's authorities."""
    cert_file: str = ""
    """The client certificate for ``https://``; "" for none. Set both this and ``key_file``, or neither."""
    key_file: str = ""
    """The key of ``cert_file``."""
    token_file: str = ""
    """The file, of mode 0600 or 0400, with the token for the other group; empty: none."""
    group: str = ""
    """The name that the other group must have; if empty, any name except this group's own."""
    timeout_s: Annotated[float, msgspec.Meta(ge=0.5, le=5.0)] = 5.0
    """Each call to the other group is tried for this many seconds."""

    def check(self) -> None:
        if self.group and not is_name(self.group):
            raise BadArgument(f"options: group: {self.group[:40]!r} is no name of a group")
        check_path("options: token_file", self.token_file)
        for name in ("ca_file", "cert_file", "key_file", "token_file"):
            _check_absolute(name, getattr(self, name))
        if bool(self.cert_file) != bool(self.key_file):
            raise BadArgument("options: cert_file and key_file: give both, or neither")
        urls = [part.strip() for part in self.url.split(",") if part.strip()]
        if not 1 <= len(urls) <= URLS_MAX:
            raise BadArgument(f"options: url: {len(urls)} nodes; give 1 to {URLS_MAX} of http://HOST:PORT, with commas")
        for url in urls:
            _check_node(url)


class WebhookOptions(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of ``webhook``."""

    url: str
    """The URL to which the events are posted."""
    secret_file: str = ""
    """A file with the secret, or with the new and the old secret on separate lines. Set either this or
    ``secret_env``."""
    secret_env: str = ""
    """The name of the node's environment variable with the secret. Set either this or ``secret_file``."""
    ca_file: str = ""
    """The certificates to trust instead of the system's authorities."""
    plain_http: bool = False
    """Whether ``http://`` is allowed. Without TLS, others can read what is sent."""
    format: Literal["lines", "standard"] = "lines"
    """The body of a request: a line of JSON for each event, or one JSON object as Standard Webhooks has it."""
    lanes: Annotated[int, msgspec.Meta(ge=1, le=32)] = 1
    """A batch is split into this many parallel requests. All events of one key use the same lane (request)."""
    batch_events: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 500
    """The most events in one batch."""
    batch_bytes: Annotated[int, msgspec.Meta(ge=KIB, le=16 * MIB)] = MIB
    """Once a batch has this many bytes of keys and values, no further event is added."""
    timeout_s: Annotated[float, msgspec.Meta(ge=0.1, le=30.0)] = 10.0
    """The seconds from the start of a request to the end of its answer."""
    connect_timeout_s: Annotated[float, msgspec.Meta(ge=0.1, le=30.0)] = 5.0
    """The seconds until a connection must be established."""
    retry_after_max_s: Annotated[float, msgspec.Meta(ge=1.0, le=3600.0)] = 300.0
    """A longer ``Retry-After`` of the server is shortened to this many seconds."""

    def check(self) -> None:
        if bool(self.secret_file) == bool(self.secret_env):
            raise BadArgument("options: give the secret by one of secret_file and secret_env")
        for name in ("secret_file", "ca_file"):
            _check_absolute(name, getattr(self, name))
        _check_variable("secret_env", self.secret_env)
        self._check_url()

    def _check_url(self) -> None:
        example = "write it as https://HOST/PATH"
        try:
            parts = urlsplit(self.url)
            right = bool(parts.hostname) and parts.port != 0 and self.url.isascii() and self.url.isprintable()
        except ValueError:
            right = False
        if not right or parts.scheme not in ("https", "http") or parts.fragment or len(self.url) > URL_MAX:
            raise BadArgument(f"options: url: {without_query(self.url)[:100]!r} is no URL to post to; {example}")
        if parts.username is not None or parts.password is not None:
            raise BadArgument(
                "options: url: has a name or a password; what is secret goes into secret_file or secret_env"
            )
        if parts.scheme == "http" and not self.plain_http:
            raise BadArgument(
                f"options: url: {without_query(self.url)[:100]!r} is sent in the clear; {example}, or set "
                "plain_http = true"
            )
        if parts.scheme == "http" and self.ca_file:
            raise BadArgument("options: ca_file: nothing is verified on http://")


class PostgresOptions(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of ``postgres``."""

    dsn: str
    """Where the database is, in libpq's form, without a password."""
    password_file: str = ""
    """A file with the password. Set either this or ``password_env``. If neither is set, libpq looks for the
    password."""
    password_env: str = ""
    """The name of the node's environment variable with the password. Set either this or ``password_file``."""
    table: str = "vlsnlog_events"
    """The table for the rows. Write the table's schema before its name, unless the table is in the first schema of the
    search path."""
    positions_table: str = "vlsnlog_positions"
    """The table for the consumer's position."""
    create: bool = True
    """Whether missing tables are created."""
    connect_timeout_s: Annotated[float, msgspec.Meta(ge=1.0, le=10.0)] = 5.0
    """The seconds until a connection must be established."""
    timeout_s: Annotated[float, msgspec.Meta(ge=1.0, le=50.0)] = 30.0
    """A transaction may take this many seconds before its connection is closed."""

    def check(self) -> None:
        if find_spec("psycopg") is None:
            raise BadArgument(
                "postgres needs vlsnlog[postgres], which is not installed: pip install 'vlsnlog[postgres]'"
            )
        if not self.dsn or len(self.dsn) > URL_MAX or not self.dsn.isprintable():
            raise BadArgument("options: dsn: write it as postgresql://USER@HOST/DATABASE, or as libpq's KEYWORD=VALUE")
        if _has_password(self.dsn):
            raise BadArgument("options: dsn: has a password; give it by password_file or password_env")
        if self.password_file and self.password_env:
            raise BadArgument("options: give the password by one of password_file and password_env")
        _check_absolute("password_file", self.password_file)
        _check_variable("password_env", self.password_env)
        for name in ("table", "positions_table"):
            if not _TABLE.match(getattr(self, name)):
                raise BadArgument(
                    f"options: {name}: {getattr(self, name)[:70]!r} is no name of a table; write TABLE or "
                    "SCHEMA.TABLE, each of a-z A-Z 0-9 _"
                )
        if self.table == self.positions_table:
            raise BadArgument("options: positions_table: is the table of the rows")


def _has_password(dsn: str) -> bool:
    if not dsn.startswith(("postgresql://", "postgres://")):
        return bool(re.search(r"(^|\s)(ssl)?password\s*=", dsn, re.IGNORECASE))
    try:
        parts = urlsplit(dsn)
        return parts.password is not None or bool(
            re.search(r"(^|&)(ssl)?password=", unquote(parts.query), re.IGNORECASE)
        )
    except ValueError:
        return ":" in dsn.partition("://")[2].partition("@")[0]


def without_query(url: str) -> str:
    """Returns a URL without the query and the user's name, because these may be secret."""
    head, _, rest = url.partition("?")[0].partition("://")
    return f"{head}://{rest.rpartition('@')[2]}" if rest else head


def _check_files(directory: str, pattern: str) -> None:
    if not directory.startswith("/") or "\0" in directory:
        raise BadArgument(
            f"options: directory: {directory[:100]!r} is no absolute path; a node's own directory may be anywhere"
        )
    unknown = [place for place in PATTERN_PLACE.findall(pattern) if place not in PATTERN_PLACES]
    if unknown or not _PATTERN_REST.match(PATTERN_PLACE.sub("", pattern)):
        said = ", ".join(f"{{{place}}}" for place in PATTERN_PLACES)
        raise BadArgument(f"options: pattern: {pattern[:PATTERN_MAX]!r}; write A-Z a-z 0-9 . _ = / - and {said}")
    if "{first}" not in pattern:
        raise BadArgument(
            f"options: pattern: {pattern[:PATTERN_MAX]!r} has no {{first}}: two files would have one name"
        )
    if any(step in ("", ".", "..") for step in pattern.split("/")) or len(pattern) > PATTERN_MAX:
        raise BadArgument(
            f"options: pattern: {pattern[:PATTERN_MAX]!r} is no relative path of at most {PATTERN_MAX} characters"
        )


def _check_absolute(name: str, path: str) -> None:
    if path and (not path.startswith("/") or "\0" in path):
        raise BadArgument(f"options: {name}: {path[:100]!r} is no absolute path")


def _check_variable(name: str, variable: str) -> None:
    if variable and not _VARIABLE.match(variable):
        raise BadArgument(f"options: {name}: {variable[:40]!r} is no name of an environment variable")


def _check_node(url: str) -> None:
    """Checks that a URL is ``http://HOST:PORT`` or ``https://HOST:PORT`` without a path."""
    try:
        parts = urlsplit(url.rstrip("/"))
        plain = not (parts.path or parts.query or parts.fragment or parts.username or parts.password)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and bool(parts.port) and plain
    except ValueError:
        right = False
    if not right:
        raise BadArgument(f"options: url: {url[:100]!r} is no node; write it as http://HOST:PORT")


@dataclass(frozen=True, slots=True)
class _Shipped:
    """One consumer that is part of vlsnlog. ``run_on`` is where the consumer must run, and ``why`` is the reason."""

    options: type[Checked]
    run_on: str
    why: str


ON_MASTER: Final = "it keeps its own position, one in the group"
ON_NODE: Final = "its files lie on one node, and say by themselves which events they have"
SHIPPED: Final = {
    "jsonl": _Shipped(JsonLinesOptions, "node", ON_NODE),
    "mirror": _Shipped(MirrorOptions, "master", ON_MASTER),
    "parquet": _Shipped(ParquetOptions, "node", ON_NODE),
    "postgres": _Shipped(PostgresOptions, "master", ON_MASTER),
    "webhook": _Shipped(WebhookOptions, "", ""),
}


def options_of(kind: type[C], given: Mapping[str, Any], size: Size) -> C:
    """Reads the table ``options`` of a shipped consumer as a ``kind``. Raises ``BadArgument``."""
    with _at("options"):
        options = _convert(kind, given, size, "option")
    options.check()
    return options


def _check_shipped(settings: CdcSettings, size: Size) -> None:
    """Checks the settings of a consumer that is part of vlsnlog. Settings of consumers outside vlsnlog are not checked.
    Raises ``BadArgument``."""
    shipped = SHIPPED.get(settings.consumer)
    if shipped is None:
        return
    options_of(shipped.options, settings.options, size)
    if shipped.run_on and settings.run_on != shipped.run_on:
        raise BadArgument(f'run_on: {settings.consumer} needs run_on = "{shipped.run_on}": {shipped.why}')
