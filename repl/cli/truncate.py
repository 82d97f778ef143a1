"""``vlsnlog truncate``: cuts a stopped node's log after a VLSN, on a person's order. It also lifts a vote floor, the
former end of a log that became shorter."""

from __future__ import annotations

import shlex
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from repl.cli.main import REFUSED
from repl.cli.options import Command, directory_argument, json_option, require_log
from repl.cli.report import print_json, several, size

if TYPE_CHECKING:
    from vlsn.offline.truncate import Floor, Loss
    from vlsn.seams import Disk, Stores
    from vlsn.state.node_file import NodeRecord


@click.command(cls=Command)
@directory_argument
@click.option("--after", type=click.IntRange(min=1), help="The last VLSN to keep; the end of a block.")
@click.option("--accept-floor", is_flag=True, help="Lift the vote floor: entries below it may be lost.")
@click.option("--yes", is_flag=True, help="Change the log; without this option the loss is only shown.")
@json_option
def truncate(directory: Path, after: int | None, accept_floor: bool, yes: bool, as_json: bool) -> int:
    """Cut the log of the stopped node in DIR after a VLSN: a rollback that no master ordered.

    Prints what would be lost, and cuts only with --yes. The node then neither leads nor votes for a log until its own
    is as long as it was, or --accept-floor lifts that.
    """
    if (after is None) == (not accept_floor):
        raise click.UsageError("pass either --after or --accept-floor")
    disk, stores = require_log(directory)
    if after is not None:
        return _cut(disk, stores, directory, after, yes=yes, as_json=as_json)
    return _lift(disk, stores, directory, yes=yes, as_json=as_json)


def _cut(disk: Disk, stores: Stores, directory: Path, after: int, *, yes: bool, as_json: bool) -> int:
    from vlsn.offline.truncate import loss_of

    loss = loss_of(disk, stores, str(directory), after)
    if not as_json:
        click.echo("\n".join(_lines(directory, loss, done=yes)))
    cut = bool(loss.first) and yes
    if cut:
        _truncate(disk, stores, directory, after)
        if not as_json:
            shown = f"`vlsnlog dump --all {shlex.quote(str(directory))}`"
            click.echo(f"done: the log ends at VLSN {after}; {shown} shows the rest, overmarked")
    if as_json:
        print_json(_fields(loss) | {"done": cut})
    return _asked(lost=bool(loss.first), yes=yes)


def _truncate(disk: Disk, stores: Stores, directory: Path, after: int) -> None:
    from vlsn.offline.truncate import Truncation
    from vlsn.real.clock import SystemClock, SystemRandom
    from vlsn.real.threads import CallerThreads
    from vlsn.seams import Seams

    ended: Future[NodeRecord] = Future()
    seams = Seams(disk, SystemClock(), SystemRandom(), CallerThreads(), stores)
    truncation = Truncation(seams, str(directory), after, done=ended.set_result, failed=ended.set_exception)
    try:
        ended.result()
    finally:
        truncation.close()


def _fields(loss: Loss) -> dict[str, Any]:
    names = ("after", "first", "last", "entries", "blocks", "bytes", "dtvlsn", "durable")
    terms = [{"term": run.term, "first": run.first, "last": run.last} for run in loss.terms]
    return {name: getattr(loss, name) for name in names} | {"terms": terms}


def _lines(directory: Path, loss: Loss, *, done: bool) -> list[str]:
    if not loss.first:
        return [f"{directory}: the log ends at VLSN {loss.after} already: nothing to cut"]
    verb = "is lost now" if done else "would be lost"
    lines = [
        f"{directory}: {verb}: VLSN {loss.first} to {loss.last}: {several(loss.entries, 'entry', 'entries')} in "
        f"{several(loss.blocks, 'block')}, {size(loss.bytes)}"
    ]
    lines += [f"  term {run.term}: VLSN {run.first} to {run.last}" for run in loss.terms]
    if loss.durable:
        until = min(loss.last, loss.dtvlsn)
        lines.append(
            f"  of these VLSN {loss.first} to {until} ({several(loss.durable, 'entry', 'entries')}) were DURABLE: "
            "a majority had synced them, and clients were told so"
        )
    else:
        lines.append(f"  none of it is known to have been durable (VLSN {loss.dtvlsn} is)")
    return lines


def _lift(disk: Disk, stores: Stores, directory: Path, *, yes: bool, as_json: bool) -> int:
    from vlsn.offline.truncate import accept_floor, floor_of

    floor = floor_of(disk, stores, str(directory))
    if yes and floor.holds:
        accept_floor(disk, str(directory))
    if as_json:
        lost = (floor.last + 1, floor.vlsn) if floor.holds else (0, 0)
        fields = {"floor_term": floor.term, "floor_vlsn": floor.vlsn, "last_term": floor.last_term, "last": floor.last}
        print_json(fields | {"first_lost": lost[0], "last_lost": lost[1], "done": yes and floor.holds})
    else:
        click.echo(_said_of(directory, floor, done=yes))
    return _asked(lost=floor.holds, yes=yes)


def _said_of(directory: Path, floor: Floor, *, done: bool) -> str:
    if not floor.vlsn:
        return f"{directory}: there is no vote floor"
    if not floor.holds:
        return (
            f"{directory}: the log has reached its vote floor (VLSN {floor.vlsn} of term {floor.term}): nothing to lift"
        )
    verb = "lifted" if done else "would be lifted"
    return (
        f"{directory}: the vote floor at VLSN {floor.vlsn} of term {floor.term} {verb}; the log ends at VLSN "
        f"{floor.last} of term {floor.last_term}: VLSN {floor.last + 1} to {floor.vlsn}, which this node once had, "
        "may be lost, durable ones too, unless another member still has them"
    )


def _asked(*, lost: bool, yes: bool) -> int:
    if not lost or yes:
        return 0
    click.echo("vlsnlog truncate: nothing was changed; add --yes to do it", err=True)
    return REFUSED
