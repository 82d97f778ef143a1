"""``vlsnlog token``: makes tokens of clients, lists them, and ends them.

    vlsnlog token create --roles append,read --keys order-     prints vlt_ID_SECRET, which no node can show again
    vlsnlog token rotate ID --overlap 1h                       prints a successor; ID works for an hour more
    vlsnlog token revoke ID                                    ID works no more

The command makes the secret and sends its SHA-256 only. ``repl/auth/tokens.py`` says what a token is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click

from repl.auth.tokens import RATE_MAX, Secret, TokenRecord, key_of, new_secret
from repl.cli.asking import ordered
from repl.cli.options import Commands
from repl.cli.report import print_json, print_list, print_table
from repl.cli.signals import run
from vlsn.errors import BadArgument, OutcomeUnknown
from vlsn.real.clock import SystemClock, SystemRandom

PATH: Final = "/v1/admin/tokens"
_SPAN: Final = re.compile(r"([0-9]{1,9})(s|m|min|h|d|w)\Z", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
SPAN_S_MAX: Final = 100 * 366 * 86_400


class SpanType(click.ParamType):  # type: ignore[type-arg]
    """A span of time as a whole number and its unit: ``90s``, ``15m``, ``12h``, ``30d``, ``4w``. In seconds."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = _SPAN.match(str(value))
        seconds = int(match[1]) * _SECONDS[match[2]] if match is not None else SPAN_S_MAX + 1
        if seconds > SPAN_S_MAX:
            self.fail(f"{str(value)[:40]!r} is no span of time, such as 90s, 15m, 12h or 30d", param, ctx)
        return seconds


ID = click.argument("id")
_RATE: Final = click.IntRange(0, RATE_MAX)


@click.group(cls=Commands)
def token() -> None:
    """Make tokens, by which clients get in, or end them."""


@token.asking(
    click.option("--roles", required=True, metavar="ROLE,…", help="Of metrics, read, append, consume, define, admin."),
    click.option("--keys", default="", metavar="PREFIX", help="It appends entries whose keys begin so, and no others."),
    click.option(
        "--names", default="", metavar="PREFIX", help="It uses consumers, sinks and destinations whose names begin so."
    ),
    click.option(
        "--expires", type=SpanType(), metavar="SPAN", help="For how long it is valid: 12h, 30d; default: for ever."
    ),
    click.option("--bytes-per-s", type=_RATE, default=0, help="Bytes that it may append in a second; 0: any."),
    click.option("--appends-per-s", type=_RATE, default=0, help="Appends that it may make in a second; 0: any."),
    click.option("--uri", default="", help="A client certificate with this URI is the token; it has no secret."),
    click.option("--title", default="", help="What it is for."),
)
def create(
    roles: str,
    keys: str,
    names: str,
    expires: int | None,
    bytes_per_s: int,
    appends_per_s: int,
    uri: str,
    title: str,
    url: list[str],
    as_json: bool,
) -> int:
    """Make a token, and print it: it cannot be shown again."""
    secret = new_secret(SystemRandom())
    if expires == 0:
        raise BadArgument("--expires: a token must last at least a second")
    record = TokenRecord(
        roles=tuple(role.strip() for role in roles.split(",")),
        sha256="" if uri else secret.sha256,
        uri=uri,
        keys=keys,
        names=names,
        bytes_per_s=bytes_per_s,
        appends_per_s=appends_per_s,
        expires_us=0 if expires is None else SystemClock().wall_us() + expires * 1_000_000,
        title=title,
    )
    record.check()
    import msgspec

    made = _made(url, "PUT", f"{PATH}/{secret.id}", msgspec.to_builtins(record), secret, "roles")
    return _print_made(made, secret, as_json, has_secret=not uri)


@token.asking(name="list")
def list_all(url: list[str], as_json: bool) -> int:
    """List the tokens, without their secrets, which no node has."""
    found = run(ordered(url, PATH, None, "tokens", method="GET"))["tokens"]
    return print_list("tokens", found, as_json, _print, "there are no tokens")


@token.asking(ID)
def revoke(id: str, url: list[str], as_json: bool) -> int:
    """End a token at once, on every node that hears the master."""
    found = run(ordered(url, f"{PATH}/{_id(id)}", None, "id", method="DELETE"))
    if as_json:
        print_json(found)
    else:
        click.echo(f"token {found['id']} is revoked")
    return 0


@token.asking(
    ID,
    click.option(
        "--overlap", type=SpanType(), default="0s", show_default=True, metavar="SPAN", help="How long it works beside."
    ),
)
def rotate(id: str, overlap: int, url: list[str], as_json: bool) -> int:
    """Make a successor of a token, with the same rights, and print it: it cannot be shown again."""
    secret = new_secret(SystemRandom())
    asked = {"id": secret.id, "sha256": secret.sha256, "overlap_s": overlap}
    made = _made(url, "POST", f"{PATH}/{_id(id)}/rotate", asked, secret, "before")
    return _print_made(made, secret, as_json)


def _id(text: str) -> str:
    """Returns a token's ID. Raises ``BadArgument``, without a secret in it."""
    if text.startswith("vlt_"):
        raise BadArgument("ID: name a token by the 8 letters and digits between vlt_ and _, without its secret")
    key_of(text)
    return text


def _made(urls: Sequence[str], method: str, path: str, body: object, secret: Secret, needed: str) -> dict[str, Any]:
    """Orders what makes ``secret`` a token. Raises as ``ordered``."""
    try:
        return run(ordered(urls, path, body, "id", needed, method=method))
    except OutcomeUnknown as error:
        raise OutcomeUnknown(f"{error}; if token {secret.id} is listed later, revoke it: its secret is lost") from None


def _print_made(made: dict[str, Any], secret: Secret, as_json: bool, *, has_secret: bool = True) -> int:
    if as_json:
        print_json({**made, **({"token": secret.text} if has_secret else {})})
    else:
        click.echo(secret.text if has_secret else made["id"])
    return 0


def _print(found: Sequence[dict[str, Any]]) -> None:
    now = SystemClock().wall_us()
    rows = [
        (
            each["id"],
            ",".join(each["roles"]),
            each["keys"],
            each["names"],
            _when(each["expires_us"], now),
            each["by"],
            each["uri"],
            each["title"],
        )
        for each in found
    ]
    print_table(
        "", ("token", "roles", "keys", "names", "ends", "made by", "uri", "title"), rows, spare=("title", "uri")
    )


def _when(us: int, now: int) -> str:
    if not us:
        return "never"
    return f"{datetime.fromtimestamp(us // 1_000_000, UTC):%Y-%m-%dT%H:%M:%SZ}" + (" (ended)" if us <= now else "")
