"""``vlsnlog status``: asks every member, and prints one table.

A group is degraded, with exit status 1, in each of these cases. A member is silent, or is neither MASTER nor REPLICA,
or has too little room on its disk. The number of masters is not one. A listed member has no live feed. A node has an
alarm (``repl.node.alarms``).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from repl.cli.asking import network
from repl.cli.contexts import learned
from repl.cli.options import Command, context_name, json_option, url_option
from repl.cli.report import print_json, print_table, several, size
from repl.cli.signals import run
from repl.cli.upgrade import may_be_raised
from vlsn.errors import BadArgument, Forbidden, Unauthorized

if TYPE_CHECKING:
    from repl.client.endpoints import Endpoints

WATCH_S = 2.0
UNREACHABLE = "UNREACHABLE"
_CLEARED = "\x1b[H\x1b[2J"
"""A terminal's escape sequence that clears the screen and moves the cursor to its first position."""


@click.command(cls=Command)
@url_option
@json_option
@click.option("--watch", is_flag=True, help=f"Ask again every {WATCH_S:g} s until Ctrl-C; on a terminal, in place.")
def status(url: list[str], as_json: bool, watch: bool) -> int:
    """Ask every member for its status; exit status 1 if the group is degraded."""
    if watch:
        try:
            run(_watch(url, as_json))
        except KeyboardInterrupt:
            return 0
    nodes = run(ask(url))
    if name := context_name():
        learned(name, nodes)
    return 1 if _show(nodes, as_json) else 0


def _show(nodes: Sequence[dict[str, Any]], as_json: bool) -> list[str]:
    """Prints the nodes' status. Returns the reasons why the group is degraded."""
    summary, reasons = summarise(nodes), degraded(nodes) + alarms(nodes)
    if as_json:
        print_json({**summary, "degraded": reasons})
    else:
        _print(summary, reasons)
    return reasons


async def _watch(urls: Sequence[str], as_json: bool) -> None:
    """Prints the status of each round until it is cancelled. On a terminal each round overwrites the last one."""
    from repl.client.endpoints import Endpoints

    async with network() as opened:
        endpoints = Endpoints(opened, urls)
        while True:
            nodes = await _ask(endpoints, urls)
            if not as_json:
                click.echo(_CLEARED if sys.stdout.isatty() else "", nl=False)
                click.echo(_when(time.time_ns() // 1_000))
            _show(nodes, as_json)
            if not as_json and not sys.stdout.isatty():
                click.echo()
            sys.stdout.flush()
            await asyncio.sleep(WATCH_S)


async def ask(urls: Sequence[str]) -> list[dict[str, Any]]:
    """Asks every given node, and every member that they name, for its status. Returns the statuses by name. A silent
    node has the state UNREACHABLE."""
    from repl.client.endpoints import Endpoints

    async with network() as opened:
        return await _ask(Endpoints(opened, urls), urls)


async def _ask(endpoints: Endpoints, urls: Sequence[str]) -> list[dict[str, Any]]:
    """Asks as ``ask``. Raises the refusal if nodes refuse the token, or it cannot be sent, and no node answers."""
    from repl.client.endpoints import Status

    answers = dict(zip(urls, await endpoints.statuses(urls), strict=True))
    refusals = [each for each in answers.values() if isinstance(each, Unauthorized | Forbidden | BadArgument)]
    if refusals and not any(isinstance(each, Status) for each in answers.values()):
        raise refusals[0]
    known = {each.node for each in answers.values() if isinstance(each, Status)}
    members = {name: url for each in answers.values() if isinstance(each, Status) for name, url in each.members.items()}
    more = [url for name, url in members.items() if name not in known and url not in answers]
    answers.update(zip(more, await endpoints.statuses(more), strict=True))
    names = {url: name for name, url in members.items()}
    nodes: dict[str, dict[str, Any]] = {}
    for url, answer in answers.items():
        if isinstance(answer, Status):
            nodes[answer.node or url] = {**answer.document, "url": url}
        elif (name := names.get(url, "")) not in known:  # a node that answers at one URL is no silent one
            nodes[name or url] = {"node": name, "url": url, "state": UNREACHABLE, "reason": str(answer)}
    return [nodes[name] for name in sorted(nodes)]


def summarise(nodes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the group, the master and the term, as reported by the node with the highest term."""
    best: dict[str, Any] = max(
        nodes, key=lambda node: (node.get("term") or 0, node["state"] == "MASTER"), default={"state": ""}
    )
    return {
        "group": best.get("group"),
        "master": best.get("master"),
        "term": best.get("term"),
        "nodes": list(nodes),
    }


def alarms(nodes: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the alarms of nodes. The alarms of a silent node are those that other nodes report about it."""
    answered = {node["node"] for node in nodes if node["state"] != UNREACHABLE}
    found = {
        (each["node"], each["kind"], each["name"]): f"{each['node']}: {each['what']}: {each['why']}"
        for node in nodes
        for each in node.get("alarms") or []
        if each["node"] == node["node"] or each["node"] not in answered
    }
    return list(found.values())


def none_answers(nodes: Sequence[dict[str, Any]]) -> bool:
    """Returns whether no node has answered. Even if no node answers, the group may still have a master."""
    return all(node["state"] == UNREACHABLE for node in nodes)


def degraded(nodes: Sequence[dict[str, Any]]) -> list[str]:
    """Returns why the group is degraded, one reason for each member. The result is empty if the group is not
    degraded."""
    if none_answers(nodes):
        return [f"no node answers: {'; '.join(node['reason'] or node['url'] for node in nodes)}"]
    reasons = []
    for node in nodes:
        if node["state"] not in ("MASTER", "REPLICA"):
            reason = node.get("reason")
            reasons.append(f"{node['node'] or node['url']} is {node['state']}" + (f" ({reason})" if reason else ""))
    for node in nodes:
        log = node.get("log") or {}
        if refuses := log.get("refuses") or ("no-space" if log.get("no_space") else ""):
            reasons.append(f"{node['node']} refuses appends: {refuses}")
    reasons += [
        f"{node['node']} has {several(len(node['damage']), 'damaged segment')}" for node in nodes if node.get("damage")
    ]
    masters = [node for node in nodes if node["state"] == "MASTER"]
    if len(masters) != 1:
        names = ", ".join(node["node"] for node in masters)
        reasons.append(f"there are several masters: {names}" if masters else "there is no master")
        return reasons
    fed = {feeder.get("replica") for feeder in masters[0].get("feeders") or []}
    unfed = [node["node"] for node in nodes if node["state"] == "REPLICA" and node["node"] not in fed]
    reasons += [f"{name} has no feed from {masters[0]['node']}" for name in unfed]
    return reasons


def _restoring(running: dict[str, Any]) -> str:
    """Returns one line about a running restore."""
    if not running["from"]:
        return "looks for a member to restore from" + (f" ({running['last_error']})" if running["last_error"] else "")
    total = running["bytes_total"]
    percent = f"{100 * running['bytes_done'] // total} % of " if total else ""
    left = f", {running['expected_s']} s left" if running["expected_s"] is not None else ""
    return f"restores from {running['from']}: {percent}{size(total)}{left}"


def _size(bytes_: int | None) -> str | None:
    return None if bytes_ is None else size(bytes_)


def _behind(feed: dict[str, Any] | None) -> str:
    """Formats how far a replica is behind, and the time until it has caught up, as "12.3 s, 4 s left"."""
    if feed is None:
        return ""
    if not feed.get("lag_vlsns"):
        return "-"
    left = feed.get("expected_s")
    seconds = f"{feed.get('lag_s') or 0.0:.1f} s"
    return f"{seconds}, not catching up" if left is None else f"{seconds}, {left:.1f} s left"


def _mastership(summary: dict[str, Any]) -> str:
    """Describes since when the master leads, and how the leadership before ended, as far as the nodes know. An example:
    "n2 leads term 7 since 2026-01-02 03:04:05; n1 stepped down: …"."""
    history = [
        (event["time"], node["node"], event)
        for node in summary["nodes"]
        for event in (node.get("elections") or {}).get("history") or []
    ]
    leads = [each for each in history if each[2]["event"] == "leads" and each[1] == summary["master"]]
    if not leads:
        return ""
    at, name, lead = max(leads, key=lambda each: each[0])
    told = f"{name} leads term {lead.get('term')} since {_when(at)}"
    ended = {each[2]["event"]: each for each in history if each[2].get("term") == lead.get("term", 0) - 1}
    if "hands_over" in ended:
        return f"{told}; {ended['hands_over'][1]} handed over to {ended['hands_over'][2].get('to')}"
    if "steps_down" in ended:
        return f"{told}; {ended['steps_down'][1]} stepped down: {ended['steps_down'][2].get('why')}"
    return told


def _when(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6).strftime("%Y-%m-%d %H:%M:%S")


def _print(summary: dict[str, Any], reasons: Sequence[str]) -> None:
    title = f"group {summary['group'] or '?'}, master {summary['master'] or 'none'}, term {summary['term'] or '?'}"
    if none_answers(summary["nodes"]):
        title = ""
    feeds = {feeder.get("replica"): feeder for node in summary["nodes"] for feeder in (node.get("feeders") or [])}
    rows = []
    for node in summary["nodes"]:
        limits = node.get("range") or {}
        log = node.get("log") or {}
        rows.append(
            (
                node["node"] or "?", node["state"], node.get("term"), limits.get("first"), limits.get("last"),
                node.get("dtvlsn"), (feeds.get(node["node"]) or {}).get("lag_vlsns"), _behind(feeds.get(node["node"])),
                log.get("segments"), _size(log.get("bytes")), _size(log.get("bytes_on_disk")), node["url"],
            )
        )  # fmt: skip
    columns = (
        "node",
        "state",
        "term",
        "first",
        "last",
        "durable",
        "lag",
        "behind",
        "segments",
        "bytes",
        "on disk",
        "url",
    )
    print_table(title, columns, rows, spare=("segments", "bytes", "on disk", "first", "term"))
    if told := _mastership(summary):
        click.echo(told)
    for node in summary["nodes"]:
        cleaning = node.get("cleaning") or {}
        if cleaning.get("blocked"):
            by = ", ".join(cleaning["blocked_by"])
            kept = several(cleaning["blocked"], "segment")
            click.echo(f"{node['node']}: {kept} that retention wants removed, kept by {by}")
        if unsigned := (node.get("key") or {}).get("unsigned"):
            click.echo(
                f"{node['node']}: {', '.join(unsigned)} did not sign the last call or answer with the group's key"
            )
        if node.get("insecure"):
            lines = ", ".join(node["protection_missing"])
            click.echo(f"{node['node']}: insecure, since it serves other machines without {lines}")
        running = (node.get("restore") or {}).get("running")
        if running:
            click.echo(f"{node['node']}: {_restoring(running)}")
    if told := may_be_raised(summary["nodes"]):
        click.echo(told)
    for reason in reasons:
        click.echo(f"degraded: {reason}")
