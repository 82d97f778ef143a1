"""``vlsnlog dest``: destinations, and what lies in them."""

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
    """Declares a setting of a destination; ``name`` is what a client calls it, where that is not the flag."""
    return click.option(flag, name or flag.removeprefix("--").replace("-", "_"), type=type, metavar=metavar, help=help)


SETTINGS = (
    _setting("--prefix", None, "Messages are the entries whose key begins so; without it all are.", "P"),
    place_option("--from", "from_", help="The first message; the end where nothing is said.", required=False),
    _setting("--max-bytes", _COUNT, "Unacknowledged bytes from which on it is full; 0 for no limit."),
    _setting("--max-messages", _COUNT, "The same in messages."),
    _setting(
        "--full-policy",
        click.Choice(["page", "drop", "block", "fail"]),
        "What becomes of appends to it while it is full; page at first.",
    ),
    _setting("--page-limit-bytes", _COUNT, "Bytes of pages from which on it takes no more; 0 for no limit."),
    _setting("--page-limit-messages", _COUNT, "The same in messages."),
    _setting(
        "--page-full-policy", click.Choice(["drop", "fail"]), "What becomes of appends to it then; fail at first."
    ),
    _setting(
        "--ack-timeout",
        FiniteRange(0.05, ACK_TIMEOUT_S_MAX),
        "Seconds after which a message is delivered again; 30 where nothing was said.",
        "S",
        name="ack_timeout_s",
    ),
    _setting(
        "--attempts-max",
        click.IntRange(1, ATTEMPTS_MAX),
        "Deliveries after which a message is dead; 5 where nothing was said.",
    ),
    _setting(
        "--redelivery-delay",
        _DELAY,
        "Seconds before a message that came back is delivered again; 0 where nothing was said.",
        "S",
        name="redelivery_delay_s",
    ),
    _setting(
        "--redelivery-factor",
        FiniteRange(1.0, REDELIVERY_FACTOR_MAX),
        "So many times longer after each further attempt; 1 where nothing was said.",
        "F",
    ),
    _setting(
        "--redelivery-delay-max",
        _DELAY,
        "The longest of these delays; 0 for a day.",
        "S",
        name="redelivery_delay_s_max",
    ),
    _setting("--max-out", click.IntRange(0, OUT_MAX), "Messages that may be out at once; 0 for no limit."),
    _setting("--dead-letter", None, "The key of its dead letters; dead_letter where nothing was said.", "KEY"),
)
"""Options of ``create``, each the setting that a client sets by its name."""


@click.group(cls=Commands)
def dest() -> None:
    """Make destinations, look at them, move and drop them."""


@dest.asking(NAME, *SETTINGS)
def create(name: str, url: list[str], as_json: bool, **settings: Any) -> int:
    """Make a destination, or change its settings."""
    return _shown(ask_group(url, lambda log: log.destinations.put(name, **settings)), as_json)


@dest.asking(name="list")
def list_all(url: list[str], as_json: bool) -> int:
    """Every destination of the group, and how far it is."""
    found = ask_group(url, lambda log: log.destinations.list())
    return print_list("destinations", found, as_json, _print, "there are no destinations")


@dest.asking(NAME)
def show(name: str, url: list[str], as_json: bool) -> int:
    """One destination: its settings, and how far it is."""

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
        "--max", "most", type=click.IntRange(1, 10_000), default=10, show_default=True, help="So many at most."
    ),
)
def peek(name: str, most: int, url: list[str], as_json: bool) -> int:
    """The next messages that are not acknowledged; none is taken."""
    for vlsn, attempt, time, key, value in ask_group(url, lambda log: log.destinations.peek(name, most)):
        if as_json:
            print_json({"vlsn": vlsn, "attempt": attempt, "time": time, "key": _text(key), "value": _text(value)})
        else:
            click.echo(f"{vlsn}\t{attempt}\t{_text(key) or ''}\t{_text(value)}")
    return 0


@dest.asking(NAME)
def pause(name: str, url: list[str], as_json: bool) -> int:
    """Deliver nothing until it is resumed."""
    return _shown(ask_group(url, lambda log: log.destinations.pause(name)), as_json)


@dest.asking(NAME)
def resume(name: str, url: list[str], as_json: bool) -> int:
    """Deliver again."""
    return _shown(ask_group(url, lambda log: log.destinations.resume(name)), as_json)


@dest.asking(NAME, place_option("--to", help="The next message."))
def move(name: str, to: int | str, url: list[str], as_json: bool) -> int:
    """Begin at another place; what was acknowledged from there on is delivered again."""
    return _shown(ask_group(url, lambda log: log.destinations.move(name, to)), as_json)


@dest.asking(NAME)
def drop(name: str, url: list[str], as_json: bool) -> int:
    """Drop a destination, with all that is not acknowledged."""
    ask_group(url, lambda log: log.destinations.drop(name))
    return print_found({"name": name, "dropped": True}, as_json, lambda _: click.echo(f"destination {name} is dropped"))


def _vlsns(help: str, *, required: bool) -> Any:
    return click.option("--vlsn", "vlsns", type=_VLSN, multiple=True, required=required, help=help)


@dest.asking(NAME, _vlsns("One of them; may be given again. Without it all are.", required=False), name="retry-dead")
def retry_dead(name: str, vlsns: tuple[int, ...], url: list[str], as_json: bool) -> int:
    """Deliver dead messages again."""
    return _shown(ask_group(url, lambda log: log.destinations.retry_dead(name, vlsns or None)), as_json)


@dest.asking(NAME, _vlsns("One of them; may be given again.", required=True), name="delete-dead")
def delete_dead(name: str, vlsns: tuple[int, ...], url: list[str], as_json: bool) -> int:
    """Keep dead messages no longer; their letters stay in the log."""
    return _shown(ask_group(url, lambda log: log.destinations.delete_dead(name, vlsns)), as_json)


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


def _shown(found: dict[str, Any], as_json: bool) -> int:
    return print_found(found, as_json, lambda found: _print([found]))


def _blocked(told: dict[str, Any]) -> str | None:
    """Returns why nothing comes in, or goes out."""
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
