"""``vlsnlog dump``: one line a frame of a node's directory.  Never writes."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from repl.cli.options import Command, json_option, require_log

if TYPE_CHECKING:
    from vlsn.dump import DumpRow

LINES_AT_ONCE = 1024


@click.command(cls=Command)
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR")
@click.option("--from", "from_vlsn", type=click.IntRange(min=1), default=1, help="First VLSN.")
@click.option("--to", "to_vlsn", type=click.IntRange(min=1), help="Last VLSN.")
@json_option
@click.option("--all", "all_frames", is_flag=True, help="Overmarked frames and local records, too.")
def dump(directory: Path, from_vlsn: int, to_vlsn: int | None, as_json: bool, all_frames: bool) -> int:
    """Print one line a frame of the node's directory DIR; of a running node, up to its synced length.

    Exit status 1 when a frame is damaged.
    """
    if to_vlsn is not None and to_vlsn < from_vlsn:
        raise click.UsageError(f"--to {to_vlsn} is before --from {from_vlsn}")
    require_log(directory)
    import msgspec

    from vlsn.disk import PosixDisk
    from vlsn.dump import dump_rows
    from vlsn.lmdb_store import LmdbStores

    rows = dump_rows(PosixDisk(), LmdbStores(), str(directory), from_vlsn=from_vlsn, to_vlsn=to_vlsn, all=all_frames)
    encode = msgspec.json.Encoder().encode_lines
    damaged = False
    while some := list(islice(rows, LINES_AT_ONCE)):
        damaged = damaged or any(row.damaged for row in some)
        sys.stdout.buffer.write(encode(some) if as_json else "".join(map(_line, some)).encode())
    return 1 if damaged else 0


def _line(row: DumpRow) -> str:
    what = f"{row.kind:<16} term {row.term}  VLSN {row.first}–{row.last}  ({row.count})" if row.first else row.kind
    marks = ("  overmarked" if row.overmarked else "") + ("  DAMAGED" if row.damaged else "")
    return f"{row.file} {row.offset:>10}  {what}{marks}\n"
