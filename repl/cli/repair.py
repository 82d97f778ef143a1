"""``vlsnlog repair``: replaces differing blocks of a stopped node's copy with those of a majority of the copies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from repl.cli.main import FINDING, OK
from repl.cli.options import Command, client_options, directory_argument, json_option, require_log
from repl.cli.report import print_json, several, size
from repl.cli.verify import progress_bar

if TYPE_CHECKING:
    from repl.audit.repair import RepairPlan
    from vlsn.verify.report import VerifyReport

PLACES_SHOWN = 20


@click.command(cls=Command)
@directory_argument
@click.option(
    "--from-audit", "report", required=True, metavar="FILE", help="A report that an audit wrote by --out FILE.json."
)
@click.option("--right", default="", metavar="SOURCE", help="The copy that is right, if there is no majority.")
@click.option("--dry-run", is_flag=True, help="Print what would be replaced, and change nothing.")
@client_options
@json_option
def repair(directory: Path, report: str, right: str, dry_run: bool, as_json: bool) -> int:
    """Replace the differing blocks of the stopped node's copy in DIR with those of a majority of the audited copies.

    The old bytes are kept aside in DIR. Afterwards the whole directory is verified.
    """
    disk, stores = require_log(directory)
    from repl.audit.repair import Repair
    from repl.audit.report import read_report
    from vlsn.errors import LogInUse
    from vlsn.real.threads import ReadAhead
    from vlsn.segments.directory import LOCK_NAME
    from vlsn.verify.verify import verify

    document = read_report(report)
    try:
        lock = disk.lock(str(directory / LOCK_NAME))
    except LogInUse:
        raise LogInUse(f"{directory}: its node runs; stop it, and repair then") from None
    try:
        work = Repair(str(directory), document, disk, stores, right=right)
        plan = work.plan()
        kept = [] if dry_run else work.carry_out(plan)
    finally:
        lock.release()
    verified = None
    if kept:
        with progress_bar() as progress:
            verified = verify(disk, stores, str(directory), progress=progress, reading=ReadAhead())
    if as_json:
        print_json(_fields(plan, kept, verified))
    else:
        _print(directory, plan, kept, verified, dry_run=dry_run)
    return OK if (verified is None or verified.ok) and not plan.left else FINDING


def _fields(plan: RepairPlan, kept: list[str], verified: VerifyReport | None) -> dict[str, Any]:
    places = [
        {"file": each.file, "offset": each.start, "bytes": each.bytes, "first": first, "last": last}
        | {"blocks": len(each.blocks), "damaged": not each.gone}
        for each, (first, last) in zip(plan.replacements, plan.spans, strict=True)
    ]
    return {
        "node": plan.node,
        "source": plan.source,
        "replaced": bool(kept),
        "blocks": plan.blocks,
        "bytes": plan.bytes,
        "places": places,
        "kept": kept,
        "left": [finding.as_dict() for finding in plan.left],
        "verified": None if verified is None else verified.ok,
    }


def _print(directory: Path, plan: RepairPlan, kept: list[str], verified: VerifyReport | None, *, dry_run: bool) -> None:
    for left in plan.left[:PLACES_SHOWN]:
        place = f"{left.file} offset {left.offset}" + (f" VLSN {left.vlsn}" if left.vlsn else "")
        click.echo(f"left: {left.rule}: {place}: {left.detail}" + (f"; {left.mend}" if left.mend else ""))
    if not plan.replacements:
        click.echo(f"{directory}: nothing to repair: the compared part of {plan.node} equals the majority's")
        return
    verb = "would be replaced" if dry_run else "replaced"
    for each, (first, last) in list(zip(plan.replacements, plan.spans, strict=True))[:PLACES_SHOWN]:
        vlsns = f"VLSN {first}" + (f" to {last}" if last > first else "")
        was = "other blocks" if each.gone else "damage"
        click.echo(f"{each.file} offset {each.start}: {vlsns}: {was} of {size(each.bytes)} {verb}")
    if len(plan.replacements) > PLACES_SHOWN:
        click.echo(f"and {len(plan.replacements) - PLACES_SHOWN} more places (--json has all)")
    if kept:
        click.echo(f"the old bytes are kept in {directory}: {', '.join(kept[:PLACES_SHOWN])}")
    for finding in verified.findings[:PLACES_SHOWN] if verified is not None else ():
        click.echo(f"finding: {finding.rule}: {finding.file} offset {finding.offset}: {finding.detail}")
    done = f"{several(plan.blocks, 'block')} of {plan.source} {verb}"
    if verified is not None:
        done += (
            "; verify finds nothing" if verified.ok else f"; verify has {several(len(verified.findings), 'finding')}"
        )
    click.echo(f"{directory}: {done}")
