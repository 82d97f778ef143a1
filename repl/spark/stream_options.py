"""The checked options of a stream and of writes; Module ``options`` has the names and uses of all options. All
functions here are pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from repl.client.sink_batch import GIVE_UP_S
from repl.spark.options import TABLES, ReadOptions, Use, fields_of, options_of, parsed, sources_of, tls_of
from repl.tls_files import NO_FILES, TlsFiles
from vlsn.errors import BadArgument
from vlsn.ids import NUMBER_MAX
from vlsn.limits import MIB

BYTES_PER_TRIGGER: Final = 128 * MIB
"""The bytes of log that a micro-batch reads by default. Without a limit the first micro-batch would read the whole
log, because Spark never makes a planned range smaller."""
BATCH_BYTES: Final = 256 * MIB
"""The most bytes of rows that the driver accepts for one batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions(ReadOptions):
    """The options of ``spark.readStream``."""

    bytes_per_trigger: int = BYTES_PER_TRIGGER
    entries_per_trigger: int = NUMBER_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of ``df.write`` and ``writeStream``. ``sink`` is empty for a batch write without a name. ``run``
    is empty for a write that may log its rows twice when it is repeated."""

    urls: tuple[str, ...]
    group: str = ""
    token_file: str = ""
    sink: str = ""
    run: str = ""
    reset: int | bool = False
    batch_bytes_max: int = BATCH_BYTES
    give_up_s: float = GIVE_UP_S
    tls: TlsFiles = NO_FILES


def stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Parses the options of a stream. Raises ``BadArgument``."""
    return options_of(StreamOptions, given, Use.STREAM)


def sink_options(given: Mapping[str, str], use: Use, *, overwrite: bool) -> SinkOptions:
    """Parses the options of a write. Raises ``BadArgument``."""
    values = parsed(given, use)
    if overwrite:
        how = ".mode('append')" if use is Use.WRITE else ".outputMode('append')"
        raise BadArgument(f"a log is not overwritten: write with {how}")
    if use is Use.SINK and "sink" not in values:
        raise BadArgument("the sink needs a name, by which its batches are known: .option('sink', 'NAME')")
    urls = _urls(values)
    return SinkOptions(
        urls=urls,
        tls=tls_of(values, urls),
        group=values.get("group", ""),
        token_file=values.get("tokenFile", ""),
        give_up_s=values.get("giveUpSeconds", GIVE_UP_S),
        **fields_of(values),
    )


def _urls(values: Mapping[str, Any]) -> tuple[str, ...]:
    if "url" in values and ("path" in values or "paths" in values):
        raise BadArgument("option 'url' and a path: only one of them names the group")
    if not {"url", "path", "paths"} & values.keys():
        raise BadArgument(f"vlsnlog needs a group to write to: .option('url', 'URL,URL'). {TABLES}")
    urls = sources_of({**values, "path": values["url"]} if "url" in values else values)
    for text in urls:
        if not text.startswith(("http://", "https://")):
            raise BadArgument(f"{text}: a log is written by its running group: name its nodes' http:// URLs")
    return urls
