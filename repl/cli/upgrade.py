"""``vlsnlog group upgrade --dry-run``: shows the next level, and whether the group can be raised to it. Nothing is
changed.

The master applies the rule, and each member reports its own version and levels. If a member is silent, or its vlsnlog
reports no levels, the master uses the levels in the member's last hello.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from repl.cli.report import print_table

LASTING = (
    "a vlsnlog that speaks only lower levels does not open these logs from then on; there is no way back but a restore "
    "of older data"
)


def plan(document: dict[str, Any], nodes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Makes the report of a dry run from the group's ``document`` and the members' statuses."""
    from vlsn.levels import BRINGS, LEVELS

    statuses = {node["node"]: node for node in nodes}
    raised = document.get("upgrade")
    level = raised["level"] if raised is not None else document["level"] + 1
    if raised is not None:
        why_not = raised["why_not"]
    elif document["state"] == "MASTER":
        why_not = f"the master, {document['node']}, runs a vlsnlog that does not report this: upgrade that node first"
    else:
        why_not = "no master answers, and only a master raises the level"
    return {
        "group": document["group"],
        "master": document["master"],
        "term": document["term"],
        "level": document["level"],
        "next": level,
        "brings": BRINGS.get(level, f"unknown to this vlsnlog, which speaks level {LEVELS}"),
        "ends": LASTING,
        "possible": not why_not,
        "why_not": why_not,
        "members": [_member(member, statuses.get(member["name"], {})) for member in document["members"]],
    }


def _member(member: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": member["name"],
        "url": member["url"],
        "state": status.get("state", "UNREACHABLE"),
        "version": status.get("version"),
        "levels": status.get("levels") or member.get("levels"),
    }


def print_plan(found: dict[str, Any]) -> None:
    print_table(
        f"group {found['group']}, master {found['master'] or 'none'}, term {found['term']}: level {found['level']}",
        ("member", "state", "version", "levels", "url"),
        [
            (each["name"], each["state"], each["version"], _range(each["levels"]), each["url"])
            for each in found["members"]
        ],
    )
    click.echo(f"level {found['next']} brings: {found['brings']}")
    click.echo(f"it is for good: {found['ends']}")
    if found["possible"]:
        click.echo("it can be raised: `vlsnlog group upgrade`")
    else:
        click.echo(f"it cannot be raised yet: {found['why_not']}")


def _range(levels: list[int] | None) -> str | None:
    from vlsn.levels import Levels

    return None if levels is None else str(Levels(*levels))


def may_be_raised(nodes: Sequence[dict[str, Any]]) -> str:
    """Returns one line of text if every node speaks a higher level than the group's level; otherwise None."""
    spoken = [node.get("levels") for node in nodes]
    group = max((node.get("level") or 0 for node in nodes), default=0)
    if not group or not all(spoken):
        return ""
    common = min(levels[1] for levels in spoken if levels)
    if common <= group:
        return ""
    return f"every member speaks level {common}, the group is at level {group}: see `vlsnlog group upgrade --dry-run`"
