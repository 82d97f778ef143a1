"""``vlsnlog dest``: creates, shows and changes destinations, and shows their messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from repl.cli.asking import ask_group
from repl.cli.options import Commands, FiniteRange
from repl.cli.places import place_option
from repl.cli.report import age, count, print_found, print_json, print_list, print_table
from vlsn.ids import NUMBER_MAX
from vlsn.limits import ACK_TIMEOUT_S_MAX, ATTEMPTS_MAX, OUT_MAX, REDELIVERY_DELAY_S_MAX, REDELIVERY_FACTOR_MAX

_COLUMNS = (
    "destination",
    "prefix",
    "policy",
    "acknowledged to",
    "behind",
    "in",
    "oldest",
    "pages",
    "out",
    "dead",
    "blocked by",
)
_COUNT = click.IntRange(0, NUMBER_MAX)
_DELAY = FiniteRange(0.0, REDELIVERY_DELAY_S_MAX)
_VLSN = click.IntRange(1, NUMBER_MAX)
NAME = click.argument("name")


def _setting(flag: str, type: Any, help: str, metavar: str | None = None, *, name: str = "") -> Any:
    """Declares a setting of a destination. ``name`` is the client's name for it, if that differs from the flag."""
    return click.option(flag, name or flag.removeprefix("--").replace("-", "_"), type=type, metavar=metavar, help=help)


SETTINGS = (
    _setting("--prefix", None, "The entries whose key begins with P are messages; by default all entries are.", "P"),
    place_option("--from", "from_", help="The first message; by default the end.", required=False),
    _setting("--max-bytes", _COUNT, "The unacknowledged bytes at which it is full; 0 for no limit."),
    _setting("--max-messages", _COUNT, "The unacknowledged messages at which it is full; 0 for no limit."),
    _setting(
        "--full-policy",
        click.Choice(["page", "drop", "block", "fail"]),
        "What an append does while the destination is full; page by default.",
    ),
    _setting("--page-limit-bytes", _COUNT, "The bytes of pages at which they are full; 0 for no limit."),
    _setting("--page-limit-messages", _COUNT, "The messages in pages at which they are full; 0 for no limit."),
    _setting("--page-full-policy", click.Choice(["drop", "fail"]), "The policy while pages are full; fail by default."),
    _setting(
        "--ack-timeout",
        FiniteRange(0.05, ACK_TIMEOUT_S_MAX),
        "Seconds after which a message is delivered again; 30 by default.",
        "S",
        name="ack_timeout_s",
    ),
    _setting(
        "--attempts-max",
        click.IntRange(1, ATTEMPTS_MAX),
        "Deliveries after which a message is dead; 5 by default.",
    ),
    _setting(
        "--redelivery-delay",
        _DELAY,
        "Seconds before a message that came back is delivered again; 0 by default.",
        "S",
        name="redelivery_delay_s",
    ),
    _setting(
        "--redelivery-factor",
        FiniteRange(1.0, REDELIVERY_FACTOR_MAX),
        "The factor by which the redelivery delay grows with each attempt; 1 by default.",
        "F",
    ),
    _setting(
        "--redelivery-delay-max",
        _DELAY,
        "The longest redelivery delay; 0 for a day.",
        "S",
        name="redelivery_delay_s_max",
    ),
    _setting("--max-out", click.IntRange(0, OUT_MAX), "Messages that may be out at once; 0 for no limit."),
    _setting("--dead-letter", None, "The key of the destination's dead letters; dead_letter by default.", "KEY"),
)
"""The options of the command ``create``. Each has the name of the setting in a client."""


@click.group(cls=Commands, also={"drop": "delete"})
def dest() -> None:
    """Create destinations, show them, move and drop them."""


@dest.asking(NAME, *SETTINGS)
def create(name: str, url: list[str], as_json: bool, **settings: Any) -> int:
    """Create a destination, or change its settings."""
    return _shown(ask_group(url, lambda log: log.destinations.put(name, **settings)), as_json)


@dest.asking(name="list")
def list_all(url: list[str], as_json: bool) -> int:
    """List every destination of the group, with its progress."""
    found = ask_group(url, lambda log: log.destinations.list())
    return print_list("destinations", found, as_json, _print, "there are no destinations")


@dest.asking(NAME)
def show(name: str, url: list[str], as_json: bool) -> int:
    """Show one destination: its settings and its progress."""

    def text(found: dict[str, Any]) -> None:
        flat = {**found, **found.get("counts", {})}
        for part in ("depth", "refused", "pages", "full"):
            flat |= {f"{part}.{key}": value for key, value in (flat.pop(part, None) or {}).items()}
        flat.pop("counts", None)
        print_table("", ("", name), [(key, str(value)) for key, value in flat.items() if key != "name"])

    return print_found(ask_group(url, lambda log: log.destinations.get(name)), as_json, text)


@dest.asking(
    NAME,
    click.option(
        "--max",
        "most",
        type=click.IntRange(1, 10_000),
        default=10,
        show_default=True,
        help="The most messages to print.",
    ),
)
def peek(name: str, most: int, url: list[str], as_json: bool) -> int:
    """Print the next unacknowledged messages, and take none."""
    for vlsn, attempt, time, key, value in ask_group(url, lambda log: log.destinations.peek(name, most)):
        if as_json:
            print_json({"vlsn": vlsn, "attempt": attempt, "time": time, "key": _text(key), "value": _text(value)})
        else:
            click.echo(f"{vlsn}\t{attempt}\t{_text(key) or ''}\t{_text(value)}")
    return 0


@dest.asking(NAME)
def pause(name: str, url: list[str], as_json: bool) -> int:
    """Deliver no messages until the destination is resumed."""
    return _shown(ask_group(url, lambda log: log.destinations.pause(name)), as_json)


@dest.asking(NAME)
def resume(name: str, url: list[str], as_json: bool) -> int:
    """Deliver messages again."""
    return _shown(ask_group(url, lambda log: log.destinations.resume(name)), as_json)


@dest.asking(NAME, place_option("--to", help="The next message."))
def move(name: str, to: int | str, url: list[str], as_json: bool) -> int:
    """Begin at another VLSN; every message from there on is delivered, acknowledged or not."""
    return _shown(ask_group(url, lambda log: log.destinations.move(name, to)), as_json)


@dest.asking(NAME)
def delete(name: str, url: list[str], as_json: bool) -> int:
    """Delete a destination, with all its unacknowledged messages."""
    ask_group(url, lambda log: log.destinations.drop(name))
    return print_found({"name": name, "dropped": True}, as_json, lambda _: click.echo(f"destination {name} is dropped"))


def _vlsns(help: str, *, required: bool) -> Any:
    return click.option("--vlsn", "vlsns", type=_VLSN, multiple=True, required=required, help=help)


@dest.asking(NAME, _vlsns("One dead message; repeatable. By default all are.", required=False), name="retry-dead")
def retry_dead(name: str, vlsns: tuple[int, ...], url: list[str], as_json: bool) -> int:
    """Deliver dead messages again."""
    return _shown(ask_group(url, lambda log: log.destinations.retry_dead(name, vlsns or None)), as_json)


@dest.asking(NAME, _vlsns("One dead message; repeatable.", required=True), name="delete-dead")
def delete_dead(name: str, vlsns: tuple[int, ...], url: list[str], as_json: bool) -> int:
    """Delete dead messages; their dead letters stay in the log."""
    return _shown(ask_group(url, lambda log: log.destinations.delete_dead(name, vlsns)), as_json)


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


def _shown(found: dict[str, Any], as_json: bool) -> int:
    return print_found(found, as_json, lambda found: _print([found]))


def _blocked(told: dict[str, Any]) -> str | None:
    """Returns why messages of a destination cannot be appended or delivered now, or None if they can."""
    if told["paused"]:
        return "paused"
    return _full(told) or told["blocked_by"] or told.get("pages", {}).get("blocked_by") or None


def _full(told: dict[str, Any]) -> str:
    full = told.get("full")
    return f"full ({full['policy']}): {full['why']}" if full else ""


def _print(found: Sequence[dict[str, Any]]) -> None:
    rows = [
        (
            each["name"],
            each["prefix"] or None,
            each["full_policy"],
            each["floor"],
            count(each["lag_vlsns"]),
            f"{each['in_per_s']:g}/s" if each.get("in_per_s") else None,
            age(each["oldest_age_s"]) if each.get("oldest_vlsn") else None,
            count(each["pages"]["pages"]) if each.get("pages") else None,
            count(each["out"]),
            count(each["dead"]),
            _blocked(each),
        )
        for each in found
    ]
    print_table("", _COLUMNS, rows, spare=("in", "policy", "acknowledged to", "prefix", "pages"))
