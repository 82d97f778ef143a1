"""``vlsnlog check``: looks at what a node stands on, before it starts and beside it.

    vlsnlog check --config /var/lib/vlsnlog/node.toml      this machine and this node's settings, then its members
    vlsnlog check --url https://a:7701,https://b:7701      a running group

Each check is one line: ``ok``, ``note`` (nothing to do) or ``look`` (something to look at, and what to do). The exit
status is 1 if there is a ``look``. The checks change nothing. That of syncs writes a temporary file of 32 MiB beside
the log.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click

from repl.cli.asking import network
from repl.cli.options import Command, config_path, json_option, url_option
from repl.cli.report import print_json, size, styled
from repl.cli.signals import run
from repl.cli.status import UNREACHABLE, alarms, ask, degraded, none_answers
from repl.config import NodeConfig, load_node_config
from vlsn.errors import BadArgument, VlsnLogError

if TYPE_CHECKING:
    from repl.web.types import Network

OK, NOTE, LOOK = "ok", "note", "look"
SYNC_BYTES: Final = 4096
SYNCS: Final = 64
SLOW_SYNC_MS: Final = 50.0
"""A median sync that is slower: each append waits for one sync here and one on another member."""
CLOCK_S: Final = 2.0
"""The most seconds between two clocks. HTTP dates have whole seconds."""
ENDS_DAYS: Final = 14.0
FREE_SHARE: Final = 0.05
ASK_S: Final = 5.0
_IDENTITY: Final = "node.id"
"""The first file of a node's log."""
_VOLATILE: Final = ("tmpfs", "ramfs")
_SHARED: Final = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs")
_NOT_AFTER: Final = re.compile(r"^vlsnlog_tls_not_after_seconds(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Line:
    """The outcome of one check. ``where`` is a node's name, a file or a URL."""

    outcome: str
    check: str
    where: str
    said: str


@click.command(cls=Command)
@url_option
@json_option
def check(url: list[str], as_json: bool) -> int:
    """Look at disk, clock, port, descriptors, versions and certificates; exit status 1 if something needs a look.

    With --config of a node: this machine, before the node starts or beside it, and its members. Without: the running
    nodes at --url and all members that they name.
    """
    path = config_path()
    lines = list(_of_node(path) if path is not None else lines_of_group(url))
    if as_json:
        print_json({"well": not _found(lines), "checks": [asdict(each) for each in lines]})
    else:
        _print(lines)
    return 1 if _found(lines) else 0


def _found(lines: Sequence[Line]) -> list[Line]:
    return [each for each in lines if each.outcome == LOOK]


def _print(lines: Sequence[Line]) -> None:
    colours = {OK: "green", NOTE: "blue", LOOK: "red"}
    most = max(len(each.check) for each in lines)
    for each in lines:
        outcome = styled(f"{each.outcome:4}", fg=colours[each.outcome], bold=each.outcome == LOOK)
        click.echo(f"{outcome}  {each.check:{most}}  {each.where}: {each.said}")
    found = len(_found(lines))
    click.echo(f"{found} of {len(lines)} checks need a look" if found else f"all {len(lines)} checks are well")


# One node, on its own machine.


def _of_node(path: Path) -> Iterator[Line]:
    try:
        config = load_node_config(path=path)
    except BadArgument as error:
        yield Line(LOOK, "settings", str(path), str(error))
        return
    yield Line(OK, "settings", str(path), f"node {config.name} of group {config.group}")
    answers = _answers(config)
    yield from _protection(config)
    yield from _credentials(config)
    yield from _disk(config)
    yield from _descriptors(config)
    yield _port(config, answers.get(config.name))
    yield from _clock_here()
    yield from _members(config, answers)


@dataclass(frozen=True, slots=True)
class _Answer:
    """A member's status, and its clock less ours in seconds; or why there is none."""

    status: dict[str, Any]
    ahead_s: float
    why: str = ""


def _answers(config: NodeConfig) -> dict[str, _Answer]:
    if config.tls_ca is not None:
        os.environ.setdefault("VLSNLOG_TLS_CA", str(config.tls_ca))
    if config.group_key is not None:
        os.environ.setdefault("VLSNLOG_GROUP_KEY", str(config.group_key))
    return run(_asked({str(name): url for name, url in config.members.items()}))


async def _asked(urls: dict[str, str]) -> dict[str, _Answer]:
    async with network() as opened:
        return {name: await _answer(opened, url) for name, url in urls.items()}


async def _answer(opened: Network, url: str) -> _Answer:
    import msgspec

    try:
        response = await opened.request("GET", f"{url}/v1/status", timeout_s=ASK_S)
        at = parsedate_to_datetime(response.headers.get("Date", "")).timestamp()
        ahead_s = at + 0.5 - time.time()
        status = msgspec.json.decode(bytes(response.body), type=dict[str, Any]) if response.status == 200 else {}
        return _Answer(
            status, ahead_s, "" if response.status == 200 else f"its status is not shown ({response.status})"
        )
    except VlsnLogError as error:
        return _Answer({}, 0.0, str(error))
    except (ValueError, TypeError):  # no date, no JSON
        return _Answer({}, 0.0, f"{url} does not answer as a node does")


def _protection(config: NodeConfig) -> Iterator[Line]:
    from repl.auth.exposure import missing_lines

    if missing := missing_lines(config):
        outcome = NOTE if config.insecure else LOOK
        yield Line(outcome, "protection", config.listen, f"other machines reach it without {', '.join(missing)}")
    else:
        yield Line(OK, "protection", config.listen, f"tls {config.tls}")


def _credentials(config: NodeConfig) -> Iterator[Line]:
    from repl.auth import group_key
    from repl.tls_files import TlsFiles, calling
    from vlsn.real.disk import PosixDisk

    if config.group_key is not None:
        where = str(config.group_key)
        try:
            yield Line(OK, "key", where, f"signs with {group_key.read(PosixDisk(), where).ids[0]}")
        except BadArgument as error:
            yield Line(LOOK, "key", where, str(error))
    if config.tls == "off":
        return
    import ssl

    files = TlsFiles(ca=str(config.tls_ca), cert=str(config.tls_cert), key=str(config.tls_key))
    try:
        calling(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), files, PosixDisk())
    except BadArgument as error:
        yield Line(LOOK, "certificate", files.cert, str(error))
        return
    for path in (files.cert, files.ca):
        yield from _ends(path)


def _ends(path: str) -> Iterator[Line]:
    """Says when the certificates of a PEM file end."""
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificates(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        yield Line(LOOK, "certificate", path, f"cannot be read: {error}")
        return
    now = datetime.now(UTC)
    for each in found:
        if each.not_valid_before_utc > now:
            yield Line(
                LOOK, "certificate", path, f"is valid from {each.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on only"
            )
        else:
            yield _end(path, (each.not_valid_after_utc - now).total_seconds() / 86_400)


def _end(where: str, days: float) -> Line:
    if days < 0:
        return Line(LOOK, "certificate", where, f"ended {-days:.0f} days ago: `vlsnlog certs node --help`")
    return Line(LOOK if days < ENDS_DAYS else OK, "certificate", where, f"ends in {days:.0f} days")


def _disk(config: NodeConfig) -> Iterator[Line]:
    place = config.dir
    while not place.exists() and place != place.parent:
        place = place.parent
    kind = _file_system(place)
    if not os.access(place, os.W_OK | os.X_OK):
        yield Line(LOOK, "disk", str(place), "this user may not write here: change the owner, or `dir`")
        return
    if kind in _VOLATILE:
        yield Line(LOOK, "disk", str(place), f"is memory ({kind}): it loses everything with the machine; change `dir`")
    elif kind in _SHARED:
        yield Line(LOOK, "disk", str(place), f"is a network's ({kind}): its locks and syncs may not be real")
    elif kind == "overlay":
        yield Line(NOTE, "disk", str(place), "is a container's own layer, which is removed with it: a volume stays")
    used = shutil.disk_usage(place)
    least = max(2 * config.segment_bytes + config.free_bytes_min, int(used.total * FREE_SHARE))
    if used.free < least:
        yield Line(LOOK, "space", str(place), f"{size(used.free)} are free; keep {size(least)} free")
    else:
        yield Line(OK, "space", str(place), f"{size(used.free)} of {size(used.total)} are free")
    yield from _syncs(place)


def _syncs(place: Path) -> Iterator[Line]:
    import numpy as np

    from repl.bench.raw_disk import synced_writes

    try:
        times = synced_writes(place, SYNC_BYTES, SYNCS)
    except OSError as error:
        yield Line(LOOK, "syncs", str(place), f"a synced write failed: {error.strerror}")
        return
    p50, p99 = (float(each) for each in np.percentile(times, [50, 99]))
    said = f"{len(times)} writes of {SYNC_BYTES} bytes with fdatasync: p50 {p50:.2f} ms, p99 {p99:.2f} ms"
    if p50 > SLOW_SYNC_MS:
        yield Line(LOOK, "syncs", str(place), f"{said}; each append waits for one here and one on another member")
    else:
        yield Line(OK, "syncs", str(place), said)


def _file_system(place: Path) -> str:
    """Returns the type of the file system of ``place``; "" if the kernel does not say."""
    best, kind = "", ""
    try:
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            left, _, right = line.partition(" - ")
            mount = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), left.split()[4])
            inside = mount == "/" or str(place.resolve()) == mount or str(place.resolve()).startswith(f"{mount}/")
            if inside and len(mount) >= len(best):
                best, kind = mount, right.split()[0]
    except (OSError, IndexError):
        return ""
    return kind


def _descriptors(config: NodeConfig) -> Iterator[Line]:
    from repl.node.capacity import check_files, files_most, memory_bytes, readers_of

    files = files_most()
    try:
        check_files(files)
        readers = readers_of(config.readers_max, files=files, memory=memory_bytes())
    except BadArgument as error:
        yield Line(LOOK, "descriptors", "this shell", str(error))
        return
    yield Line(OK, "descriptors", "this shell", f"{files}, enough for {readers} waiting readers")


def _port(config: NodeConfig, own: _Answer | None) -> Line:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((config.host, config.port))
        return Line(OK, "port", config.listen, "is free; the node is not running")
    except OSError as error:
        if own is not None and own.status.get("node") == config.name:
            return Line(OK, "port", config.listen, f"the node answers: {own.status.get('state')}")
        said = f"cannot be bound ({error.strerror or error}), and {config.name} does not answer at {config.url}"
        return Line(LOOK, "port", config.listen, said)


def _clock_here() -> Iterator[Line]:
    synchronised = _is_synchronised()
    if synchronised is not None:
        said = "a time service keeps it" if synchronised else "no time service keeps it, as far as the kernel knows"
        yield Line(OK if synchronised else NOTE, "clock", "this machine", said)


def _is_synchronised() -> bool | None:
    """Asks the kernel whether a time service keeps the clock (``adjtimex``); None if it does not say."""
    import ctypes

    try:
        status = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))
    except (OSError, AttributeError):
        return None
    return None if status < 0 else status != 5  # TIME_ERROR


def _members(config: NodeConfig, answers: dict[str, _Answer]) -> Iterator[Line]:
    for name, url in config.members.items():
        answer = answers[name]
        if name == config.name:
            continue
        if not answer.status:
            # a node without a log is the first one to be started, perhaps
            outcome = LOOK if (config.dir / _IDENTITY).exists() else NOTE
            yield Line(outcome, "member", str(name), f"{answer.why or 'no answer'}; is it started, and the way open?")
            continue
        if (answer.status.get("node"), answer.status.get("group")) != (name, config.group):
            said = f"{url} is {answer.status.get('node')} of the group {answer.status.get('group')}"
            yield Line(LOOK, "member", str(name), f"{said}: correct `members`")
            continue
        yield Line(OK, "member", str(name), f"{answer.status.get('state')} at {url}")
    yield from _clocks({name: answer for name, answer in answers.items() if answer.status})
    others = [each.status for name, each in answers.items() if each.status and name != config.name]
    yield from _versions([{"version": _version(), "node": config.name}, *others])


# A running group.


def lines_of_group(urls: Sequence[str]) -> Iterator[Line]:
    """Yields the checks of the nodes at ``urls`` and of all members that they name."""
    nodes = run(ask(urls))
    if none_answers(nodes):
        for node in nodes:
            yield Line(LOOK, "member", node["node"] or node["url"], node["reason"] or "no answer")
        return
    answered = {str(node["node"]): str(node["url"]) for node in nodes if node["state"] != UNREACHABLE}
    for name, url in answered.items():
        state = next(node["state"] for node in nodes if node["node"] == name)
        if state in ("MASTER", "REPLICA"):
            yield Line(OK, "member", name, f"{state} at {url}")
    for reason in degraded(nodes) + alarms(nodes):
        name, _, said = reason.partition(" ")
        known = name.rstrip(":") in {str(node["node"]) for node in nodes}
        where, text = (name.rstrip(":"), said) if known else (str(nodes[0].get("group") or "group"), reason)
        yield Line(LOOK, "group", where, text)
    for node in nodes:
        if node.get("insecure"):
            said = f"other machines reach it without {', '.join(node['protection_missing'])}"
            yield Line(NOTE, "protection", node["node"], said)
        if unsigned := (node.get("key") or {}).get("unsigned"):
            yield Line(LOOK, "key", node["node"], f"{', '.join(unsigned)} did not sign with the group's key")
    yield from _keys(nodes)
    yield from _versions([node for node in nodes if node["state"] != UNREACHABLE])
    yield from _clocks(run(_asked(answered)))
    yield from _certificates(run(_scraped(answered)))


def _keys(nodes: Sequence[dict[str, Any]]) -> Iterator[Line]:
    signing = {str(node["node"]): node["key"].get("signs") for node in nodes if node.get("key")}
    if len(set(signing.values())) > 1:
        said = ", ".join(f"{name} signs with {key}" for name, key in signing.items())
        yield Line(LOOK, "key", "group", f"{said}: an exchange is not done: `vlsnlog key use --help`")
    elif signing:
        yield Line(OK, "key", "group", f"every member signs with {next(iter(signing.values()))}")


def _versions(nodes: Sequence[dict[str, Any]]) -> Iterator[Line]:
    versions = {str(node["node"]): str(node.get("version") or "?") for node in nodes}
    if len(set(versions.values())) > 1:
        said = ", ".join(f"{name} {version}" for name, version in versions.items())
        yield Line(LOOK, "versions", "group", f"{said}: an upgrade is not done")
    else:
        yield Line(OK, "versions", "group", f"every member runs {next(iter(versions.values()))}")


def _clocks(answers: dict[str, _Answer]) -> Iterator[Line]:
    apart = {name: each.ahead_s for name, each in answers.items() if not each.why}
    if not apart:
        return
    worst = max(apart, key=lambda name: abs(apart[name]))
    if abs(apart[worst]) > CLOCK_S:
        said = f"{apart[worst]:+.1f} s from this machine's clock: retention by age, tokens and TLS go by clocks"
        yield Line(LOOK, "clock", worst, said)
    else:
        yield Line(OK, "clock", "group", f"members' clocks are within {CLOCK_S:g} s of this machine's")


async def _scraped(urls: dict[str, str]) -> dict[str, float]:
    """Returns the end of each node's certificate in seconds since the epoch, for nodes that tell."""
    found: dict[str, float] = {}
    async with network() as opened:
        for name, url in urls.items():
            if urlsplit(url).scheme == "https":
                try:
                    text = bytes((await opened.request("GET", f"{url}/metrics", timeout_s=ASK_S)).body).decode()
                except (VlsnLogError, UnicodeDecodeError):
                    continue
                if ends := _NOT_AFTER.search(text):
                    found[name] = float(ends[1])
    return found


def _certificates(ends: dict[str, float]) -> Iterator[Line]:
    for name, at in ends.items():
        yield _end(name, (at - time.time()) / 86_400)


def _version() -> str:
    from importlib.metadata import version

    return version("vlsnlog")
