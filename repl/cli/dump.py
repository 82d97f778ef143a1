"""``vlsnlog dump``: prints one line for each frame in a node's directory. It never writes."""

from __future__ import annotations

import re
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from repl.cli.options import Command, directory_argument, json_option, require_log
from repl.cli.places import VLSN

if TYPE_CHECKING:
    from vlsn.verify.dump import DumpRow

LINES_AT_ONCE: Final = 1024
KINDS: Final = (
    *("block", "checkpoint-start", "checkpoint-end", "rollback-start", "rollback-end", "unreadable", "torn-tail"),
    *("data", "term", "group", "commit", "abort"),
)
"""The kinds that ``--kind`` accepts: first those of frames, then those of entries in a block."""
_FRAME_KINDS: Final = 7
_LSN: Final = re.compile(r"(?:(\d{1,8})(?:\.vlog)?:)?(\d{1,20}|0x[0-9a-fA-F]{1,16})\Z")


class LsnType(click.ParamType):  # type: ignore[type-arg]
    """Parses an LSN, a place in the log's files: ``2:4096`` and ``00000002.vlog:4096`` mean offset 4096 of segment 2.
    The single number that ``--json`` prints is accepted, too."""

    name = "lsn"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = _LSN.match(value)
        if found is None:
            self.fail(f"{value!r} is no LSN: SEGMENT:OFFSET, or one number", param, ctx)
        number, offset = int(found[1] or 0), int(found[2], 0)
        if number and offset >> 32:
            self.fail(f"{value!r}: an offset is below 2^32", param, ctx)
        return number << 32 | offset


@click.command(cls=Command)
@directory_argument
@click.option("--from", "from_vlsn", type=VLSN, default=1, help="First VLSN.")
@click.option("--to", "to_vlsn", type=VLSN, help="Last VLSN.")
@click.option("--from-lsn", type=LsnType(), default=0, help="First LSN: SEGMENT:OFFSET, or the number.")
@click.option("--to-lsn", type=LsnType(), help="Last LSN.")
@click.option(
    "--kind", "kinds", type=click.Choice(KINDS, case_sensitive=False), multiple=True, help="Only this kind; repeatable."
)
@click.option("--term", type=click.IntRange(min=1), help="Blocks of this term only.")
@click.option("--reverse", is_flag=True, help="From the end backwards.")
@json_option
@click.option("--all", "all_frames", is_flag=True, help="Also overmarked frames, local records and a torn tail.")
def dump(
    directory: Path, from_vlsn: int, to_vlsn: int | None, from_lsn: int, to_lsn: int | None, kinds: tuple[str, ...],
    term: int | None, reverse: bool, as_json: bool, all_frames: bool,
) -> int:  # fmt: skip
    """Print one line for each frame in the node's directory DIR; for a running node, up to its synced end.

    Exit status 1 if a printed frame is damaged.
    """
    if to_vlsn is not None and to_vlsn < from_vlsn:
        raise click.UsageError(f"--to {to_vlsn} is before --from {from_vlsn}")
    if to_lsn is not None and to_lsn < from_lsn:
        raise click.UsageError("--to-lsn is before --from-lsn")
    disk, stores = require_log(directory)
    import msgspec

    from vlsn.format.block import EntryKind
    from vlsn.verify.dump import DumpFilter, dump_rows

    wanted = DumpFilter(
        from_vlsn=from_vlsn,
        to_vlsn=to_vlsn,
        from_lsn=from_lsn,
        to_lsn=to_lsn,
        kinds=frozenset(kind.upper().replace("-", "_") for kind in kinds if kind.lower() in KINDS[:_FRAME_KINDS]),
        entries=frozenset(EntryKind[kind.upper()] for kind in kinds if kind.lower() in KINDS[_FRAME_KINDS:]),
        term=term,
        all=all_frames,
    )
    rows = dump_rows(disk, stores, str(directory), wanted, reverse=reverse)
    encode = msgspec.json.Encoder().encode_lines
    colour = sys.stdout.isatty() and not as_json
    if colour:
        click.secho(HEADING, bold=True)
    damaged = False
    while some := list(islice(rows, LINES_AT_ONCE)):
        damaged = damaged or any(row.damaged for row in some)
        data = encode(some) if as_json else "".join(_line(row, colour=colour) for row in some).encode()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    return 1 if damaged else 0


HEADING: Final = (
    f"{'file':<13} {'offset':>10}  {'kind':<16} {'term':>6} {'VLSN':>12} {'to':>12} {'count':>6} {'bytes':>9}  what"
)


def _line(row: DumpRow, *, colour: bool) -> str:
    """Returns one row of the table under ``HEADING``. Columns have fixed widths, so that lines can be printed as they
    are read."""
    span = f"{row.term or '-':>6} {row.first or '-':>12} {row.last or '-':>12} {row.count or '-':>6}"
    marks = ("overmarked", "DAMAGED")
    said = [
        row.entries,
        *(mark for mark, on in zip(marks, (row.overmarked, row.damaged), strict=True) if on),
        row.detail,
    ]
    text = f"{row.file:<13} {row.offset:>10}  {row.kind:<16} {span} {row.bytes:>9}  " + "  ".join(filter(None, said))
    if colour and (row.damaged or row.overmarked):
        text = click.style(text, fg="red" if row.damaged else None, dim=row.overmarked)
    return text.rstrip() + "\n"
