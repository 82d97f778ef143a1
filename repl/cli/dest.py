"""``vlsnlog dest``: destinations, and what lies in them."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from repl.cli.options import Command, Commands, FiniteRange, json_option, url_option
from repl.cli.places import place_of
from repl.cli.report import age, count, print_json, print_table
from repl.cli.signals import run
from vlsn.ids import NUMBER_MAX
from vlsn.limits import ACK_TIMEOUT_S_MAX, ATTEMPTS_MAX, OUT_MAX, REDELIVERY_DELAY_S_MAX, REDELIVERY_FACTOR_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from repl.client.connect import Client

    T = TypeVar("T")

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
_POLICIES = click.Choice(["page", "drop", "block", "fail"])
_PAGE_POLICIES = click.Choice(["drop", "fail"])
_COUNT = click.IntRange(0, NUMBER_MAX)
_VLSN = click.IntRange(1, NUMBER_MAX)


@click.group(cls=Commands)
def dest() -> None:
    """Make destinations, look at them, move and drop them."""


@dest.command(cls=Command)
@click.argument("name")
@click.option("--prefix", metavar="P", help="Messages are the entries whose key begins so; without it all are.")
@click.option("--from", "begin", metavar="VLSN|start|end", help="The first message; the end where nothing is said.")
@click.option("--max-bytes", type=_COUNT, help="Unacknowledged bytes from which on it is full; 0 for no limit.")
@click.option("--max-messages", type=_COUNT, help="The same in messages.")
@click.option("--full-policy", type=_POLICIES, help="What becomes of appends to it while it is full; page at first.")
@click.option("--page-limit-bytes", type=_COUNT, help="Bytes of pages from which on it takes no more; 0 for no limit.")
@click.option("--page-limit-messages", type=_COUNT, help="The same in messages.")
@click.option("--page-full-policy", type=_PAGE_POLICIES, help="What becomes of appends to it then; fail at first.")
@click.option(
    "--ack-timeout",
    type=FiniteRange(0.05, ACK_TIMEOUT_S_MAX),
    metavar="S",
    help="Seconds after which a message is delivered again; 30 where nothing was said.",
)
@click.option(
    "--attempts-max",
    type=click.IntRange(1, ATTEMPTS_MAX),
    help="Deliveries after which a message is dead; 5 where nothing was said.",
)
@click.option(
    "--redelivery-delay",
    type=FiniteRange(0.0, REDELIVERY_DELAY_S_MAX),
    metavar="S",
    help="Seconds before a message that came back is delivered again; 0 where nothing was said.",
)
@click.option(
    "--redelivery-factor",
    type=FiniteRange(1.0, REDELIVERY_FACTOR_MAX),
    metavar="F",
    help="So many times longer after each further attempt; 1 where nothing was said.",
)
@click.option(
    "--redelivery-delay-max",
    type=FiniteRange(0.0, REDELIVERY_DELAY_S_MAX),
    metavar="S",
    help="The longest of these delays; 0 for a day.",
)
@click.option("--max-out", type=click.IntRange(0, OUT_MAX), help="Messages that may be out at once; 0 for no limit.")
@click.option("--dead-letter", metavar="KEY", help="The key of its dead letters; dead_letter where nothing was said.")
@url_option
@json_option
def create(
    name: str,
    prefix: str | None,
    begin: str | None,
    max_bytes: int | None,
    max_messages: int | None,
    full_policy: str | None,
    page_limit_bytes: int | None,
    page_limit_messages: int | None,
    page_full_policy: str | None,
    ack_timeout: float | None,
    attempts_max: int | None,
    redelivery_delay: float | None,
    redelivery_factor: float | None,
    redelivery_delay_max: float | None,
    max_out: int | None,
    dead_letter: str | None,
    url: list[str],
    as_json: bool,
) -> int:
    """Make a destination, or change its settings."""
    settings = {
        "prefix": prefix,
        "from_": None if begin is None else place_of(begin, "--from"),
        "max_bytes": max_bytes,
        "max_messages": max_messages,
        "full_policy": full_policy,
        "page_limit_bytes": page_limit_bytes,
        "page_limit_messages": page_limit_messages,
        "page_full_policy": page_full_policy,
        "ack_timeout_s": ack_timeout,
        "attempts_max": attempts_max,
        "redelivery_delay_s": redelivery_delay,
        "redelivery_factor": redelivery_factor,
        "redelivery_delay_s_max": redelivery_delay_max,
        "max_out": max_out,
        "dead_letter": dead_letter,
    }
    return _shown(run(_asked(url, lambda log: log.destinations.put(name, **settings))), as_json)


@dest.command(cls=Command, name="list")
@url_option
@json_option
def list_all(url: list[str], as_json: bool) -> int:
    """Every destination of the group, and how far it is."""
    found = run(_asked(url, lambda log: log.destinations.list()))
    if as_json:
        print_json({"destinations": found})
    elif found:
        _print(found)
    else:
        click.echo("there are no destinations")
    return 0


@dest.command(cls=Command)
@click.argument("name")
@url_option
@json_option
def show(name: str, url: list[str], as_json: bool) -> int:
    """One destination: its settings, and how far it is."""
    found = run(_asked(url, lambda log: log.destinations.get(name)))
    if as_json:
        print_json(found)
    else:
        flat = {**found, **found.get("counts", {})}
        for part in ("depth", "refused", "pages", "full"):
            flat |= {f"{part}.{key}": value for key, value in (flat.pop(part, None) or {}).items()}
        flat.pop("counts", None)
        print_table("", ("", name), [(key, str(value)) for key, value in flat.items() if key != "name"])
    return 0


@dest.command(cls=Command)
@click.argument("name")
@click.option("--max", "most", type=click.IntRange(1, 10_000), default=10, show_default=True, help="So many at most.")
@url_option
@json_option
def peek(name: str, most: int, url: list[str], as_json: bool) -> int:
    """The next messages that are not acknowledged; none is taken."""
    rows = run(_asked(url, lambda log: log.destinations.peek(name, most)))
    for vlsn, attempt, time, key, value in rows:
        if as_json:
            shown = {"vlsn": vlsn, "attempt": attempt, "time": time, "key": _text(key), "value": _text(value)}
            print_json(shown)
        else:
            click.echo(f"{vlsn}\t{attempt}\t{_text(key) or ''}\t{_text(value)}")
    return 0


@dest.command(cls=Command)
@click.argument("name")
@url_option
@json_option
def pause(name: str, url: list[str], as_json: bool) -> int:
    """Deliver nothing until it is resumed."""
    return _shown(run(_asked(url, lambda log: log.destinations.pause(name))), as_json)


@dest.command(cls=Command)
@click.argument("name")
@url_option
@json_option
def resume(name: str, url: list[str], as_json: bool) -> int:
    """Deliver again."""
    return _shown(run(_asked(url, lambda log: log.destinations.resume(name))), as_json)


@dest.command(cls=Command)
@click.argument("name")
@click.option("--to", "place", required=True, metavar="VLSN|start|end", help="The next message.")
@url_option
@json_option
def move(name: str, place: str, url: list[str], as_json: bool) -> int:
    """Begin at another place; what was acknowledged from there on is delivered again."""
    to = place_of(place, "--to")
    return _shown(run(_asked(url, lambda log: log.destinations.move(name, to))), as_json)


@dest.command(cls=Command)
@click.argument("name")
@url_option
@json_option
def drop(name: str, url: list[str], as_json: bool) -> int:
    """Drop a destination, with all that is not acknowledged."""
    run(_asked(url, lambda log: log.destinations.drop(name)))
    if as_json:
        print_json({"name": name, "dropped": True})
    else:
        click.echo(f"destination {name} is dropped")
    return 0


@dest.command(cls=Command, name="retry-dead")
@click.argument("name")
@click.option("--vlsn", "vlsns", type=_VLSN, multiple=True, help="One of them; may be given again. Without it all are.")
@url_option
@json_option
def retry_dead(name: str, vlsns: tuple[int, ...], url: list[str], as_json: bool) -> int:
    """Deliver dead messages again."""
    return _shown(run(_asked(url, lambda log: log.destinations.retry_dead(name, vlsns or None))), as_json)


@dest.command(cls=Command, name="delete-dead")
@click.argument("name")
@click.option("--vlsn", "vlsns", type=_VLSN, multiple=True, required=True, help="One of them; may be given again.")
@url_option
@json_option
def delete_dead(name: str, vlsns: tuple[int, ...], url: list[str], as_json: bool) -> int:
    """Keep dead messages no longer; their letters stay in the log."""
    return _shown(run(_asked(url, lambda log: log.destinations.delete_dead(name, vlsns))), as_json)


async def _asked(urls: Sequence[str], call: Callable[[Client[Any]], Coroutine[Any, Any, T]]) -> T:
    from repl.client.connect import connect

    async with connect(",".join(urls)) as log:
        return await call(log)


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


def _shown(found: dict[str, Any], as_json: bool) -> int:
    if as_json:
        print_json(found)
    else:
        _print([found])
    return 0


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
