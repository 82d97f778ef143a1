"""A rolling upgrade under load: nodes of the previous version (P) become nodes of this one (C), one after the other.

    PPP ─► CPP ─► CCP ─► one back: CPP ─► CCC ─► `group upgrade` ─► n3 of P: exit status 2, its directory unchanged

In each mix, while the workload goes on:

| step | holds once |
|---|---|
| each kind leads | the node leads, and appends, transactions and acknowledgements are answered |
| cleaning | every member has removed a segment, and the master has pages of a destination |
| restore | a wiped replica is restored and admitted again |
| membership | a spare is added, becomes electable, and is removed |
| consumers in nodes | the one on the master gets past what was durable |
| same bytes | each node serves the entries of PPP byte for byte |
| dry run | `group upgrade --dry-run` says yes only if all members speak the next level |

Cleaning, restore and membership need a workload with destinations; consumers and bytes one with CDC (``harness.run``).
A clean stop and start with the other version lets neither the level nor the durable end fall.
Each wait is ``WAIT_S`` at most; a step that does not come true in time leaves the verdict open.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from harness.captures.settings import ON_MASTER
from harness.group.members import Listed, Step
from harness.group.nodes import Group
from harness.group.watch import Watch
from harness.nemesis.changing import Changing
from harness.ops import Recorder
from harness.orders import ROOT, command, order
from harness.workloads.work import Work
from repl.web import problem
from repl.web.types import Network, Response
from vlsn.errors import BadArgument, VlsnLogError

WAIT_S: Final = 120.0
POLL_S: Final = 0.1
ORDER_S: Final = 15.0
WORKED: Final = 20
"""Acknowledged appends that show that the workload goes on."""
COMPARED_MAX: Final = 1000
"""VLSNs whose bytes are compared."""
REASON: Final = "upgrade"
SETTINGS: Final = {"segment_bytes": 1 << 17, "retention_bytes": 1 << 19, "cleaning_period_s": 0.5}
"""Small, so that each mix cleans within seconds."""
BLOCKS: Final = {"Accept": "application/x-vlsnlog-blocks"}
LATER: Final = "# of a later version: "
"""The prefix of a setting that the node's version does not know."""
_ASKED: Final = """
import json
from repl.config import COMMAND_SETTINGS, NODE_SETTINGS
from vlsn.levels import LEVELS
print(json.dumps({"level": LEVELS.max, "settings": [*NODE_SETTINGS, *COMMAND_SETTINGS]}))
"""
CHANGING_FILES: Final = frozenset({"LOCK", "lock.mdb", "node.log", "node.pid"})
"""Files that any start of a process writes, a refused one too."""


@dataclass(frozen=True, slots=True)
class Code:
    """One version: its sources, and the interpreter that has what they need."""

    letter: str
    path: Path
    python: str

    def run_by(self, group: Group, name: str) -> None:
        """Lets the next start of that node run it, with the settings that it knows."""
        node = group.node(name)
        node.python = self.python
        node.environment["PYTHONPATH"] = f"{self.path}:{ROOT / 'jepsen-like'}"
        before = node.config_path.read_text()
        text = with_settings(before, self.facts().settings)
        if text != before:
            node.config_path.write_text(text)

    def facts(self) -> Facts:
        """Asks it about itself, once. Raises ``BadArgument``."""
        return _facts(self.path, self.python)


class Facts(msgspec.Struct, frozen=True):
    """A version's own words."""

    level: int
    """The highest one that it speaks."""
    settings: frozenset[str]
    """The keys of a config file that it knows."""


@cache
def _facts(path: Path, python: str) -> Facts:
    asked = [python, "-P", "-c", _ASKED]
    ended = subprocess.run(asked, env={"PYTHONPATH": str(path)}, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise BadArgument(f"{path}: is no vlsnlog that {python} runs: {ended.stderr.strip()[-200:]}")
    return msgspec.json.decode(ended.stdout, type=Facts)


def with_settings(text: str, known: Collection[str]) -> str:
    """Returns a node's config file without the top-level settings that are not ``known``. They stay in it as comments,
    and are settings again for a version that knows them."""
    head, table, rest = text.partition("\n[")
    lines = []
    for line in head.split("\n"):
        setting = line.removeprefix(LATER)
        name = setting.partition("=")[0].strip()
        lines.append(setting if not name or name.startswith("#") or name in known else LATER + setting)
    return "\n".join(lines) + table + rest


def this_version() -> Code:
    return Code("C", ROOT, sys.executable)


def unpack(revision: str, directory: Path) -> Code:
    """Makes the sources of ``revision`` anew in ``directory``, with an environment of their own where the lock file
    differs. Raises ``BadArgument``."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    packed = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode != 0:
        raise BadArgument(f"git archive {revision}: {packed.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", str(directory)], input=packed.stdout, check=True)
    python = sys.executable
    if (directory / "uv.lock").read_bytes() != (ROOT / "uv.lock").read_bytes():
        subprocess.run(["make", "--no-print-directory", "-C", str(directory), ".venv/.from-lock"], check=True)
        python = str(directory / ".venv" / "bin" / "python")
    return Code("P", directory, python)


class Stuck(Exception):
    """A step did not come true in time."""


@dataclass
class Upgrade:
    """The upgrade of one run's group."""

    group: Group
    watch: Watch
    changing: Changing
    recorder: Recorder
    network: Network
    work: Work
    say: Callable[[str], None]
    previous: Code
    current: Code = field(default_factory=this_version)
    kills: bool = False
    """True if nodes are killed meanwhile: calls that fail are made again, and only clean ends are compared."""
    counts: Counter[str] = field(default_factory=Counter)
    """Steps that came true, by kind."""
    findings: list[tuple[str, str]] = field(default_factory=list)
    """(mix, what does not hold)."""
    lacks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._codes: dict[str, Code] = {}
        self._served = b"", b""
        self._served_to = 0
        self._numbers = 1000
        self._top = {code.letter: code.facts().level for code in (self.previous, self.current)}
        for name in self.group.names:
            self._gives(name, self.previous)

    @property
    def mix(self) -> str:
        """The versions of the founders, in their order."""
        return "".join(self._codes[name].letter for name in self.group.founders)

    async def run(self) -> None:
        """Returns when the story is at its end, or stuck."""
        first, *_, last_but_one, last = self.group.founders
        steps: Sequence[tuple[Sequence[str], Code]] = (
            ((), self.previous),
            ((first,), self.current),
            (self.group.founders[1:-1], self.current),
            ((last_but_one,), self.previous),
            ((last_but_one, last), self.current),
        )
        try:
            for names, code in steps:
                for name in names:
                    await self._change(name, code)
                await self._mixed(list(names) or [last])
            await self._raised(last)
        except Stuck as stuck:
            self.lacks.append(f"{self.mix}: {stuck}")

    # One mix.

    async def _mixed(self, changed: list[str]) -> None:
        self._says("begins")
        kind = self._codes[changed[0]]
        await self._leads(changed[0])
        others = [name for name in self.group.founders if self._codes[name] is not kind and name not in changed]
        if others:
            await self._leads(others[-1])
        if self.work.destinations:
            await self._cleaned()
            await self._restored(changed[-1])
            await self._comes_and_goes(kind)
        if self.work.captures:
            await self._captured()
            await self._same_bytes()
        await self._dry_run()
        self.counts["mixes"] += 1

    async def _leads(self, name: str) -> None:
        async def led() -> bool:
            if self.watch.master == name:
                return True
            master = self.watch.master
            if master is not None:
                await self._order(master, f"transfer?to={name}")
            return False

        await self._until(led, f"{name} leads")
        await self._worked()
        self.counts[f"leads: {self._codes[name].letter}"] += 1
        self._says(f"{name} leads, and the workload goes on")

    async def _worked(self) -> None:
        """Waits until clients are answered: appends, and what else the workload has."""
        needed = {"append": WORKED}
        if self.work.destinations or self.work.captures or self.work.transactions:
            needed["txn"] = 1
        if self.work.destinations:
            needed |= {"ack": 1}
        seen, done = len(self.recorder.ops), Counter[str]()

        async def answered() -> bool:
            nonlocal seen
            for op in self.recorder.ops[seen:]:
                if op.type == "ok":
                    done[op.f] += 1
                    done["txn"] += bool(op.value.get("txn"))
            seen = len(self.recorder.ops)
            return all(done[what] >= count for what, count in needed.items())

        await self._until(answered, f"the workload is answered: {needed}")

    async def _cleaned(self) -> None:
        first = {name: self._first(name) for name in self.group.listed}

        async def cleaned() -> bool:
            for name in self.group.listed:
                if self._first(name) <= first[name]:
                    await self._order(name, "rotate")
                    await self._order(name, "checkpoint")
            destinations = self._status(self.watch.master or "").get("destinations") or []
            pages = sum((each.get("pages") or {}).get("pages", 0) for each in destinations)
            return pages > 0 and all(self._first(name) > first[name] for name in self.group.listed)

        await self._until(cleaned, "every member has removed a segment, and the master has pages")
        self.counts["cleanings"] += 1
        self._says(f"every member has removed segments: the logs begin at {self._first(self.group.listed[0])}")

    async def _restored(self, name: str) -> None:
        if self.watch.master == name:
            await self._leads(next(each for each in self.group.founders if each != name))
        process = self._status(name).get("process")
        await self._taken(Step("readmit", name, fresh=True))

        async def follows() -> bool:
            status = self._status(name)
            return status.get("state") == "REPLICA" and status.get("process") != process and self._caught_up(name)

        await self._until(follows, f"{name}, wiped, follows again")
        if not self.kills and not (self._status(name).get("restore") or {}).get("history"):
            self._finds(f"{name} follows a cleaned log, and was not restored")
        self.counts["restores"] += 1
        self._says(f"{name} was wiped, restored, and follows")

    async def _comes_and_goes(self, code: Code) -> None:
        """A spare of that version becomes a member, electable, and is removed again."""
        spare = self.group.names[-1]
        used = self.group.used(spare)
        if used:
            await self.group.stop([spare], REASON, signal.SIGTERM)
        self._gives(spare, code)
        if used:
            self.group.start_again([spare], REASON)
        await self._taken(Step("add", spare, fresh=used), lambda listed: spare in listed.electable)
        await self._worked()
        await self._taken(Step("remove", spare), lambda listed: spare not in listed.members)
        self.counts["members that came and went"] += 1
        self._says(f"{spare}, of {code.letter}, was added and removed")

    async def _taken(self, step: Step, holds: Callable[[Listed], bool] = lambda _: True) -> None:
        self._numbers += 1
        if not await self.changing.take(step, self._numbers, WAIT_S, holds):
            raise Stuck(f"not within {WAIT_S:.0f} s: {step}")

    async def _captured(self) -> None:
        durable = max(self._durable(name) for name in self.group.listed)

        async def passed() -> bool:
            consumers = self._status(self.watch.master or "").get("cdc") or []
            return any(each["name"] == ON_MASTER and (each["next"] or 0) > durable for each in consumers)

        await self._until(passed, f"the consumer on the master gets past VLSN {durable}")
        self.counts["consumers on the master"] += 1

    async def _same_bytes(self) -> None:
        """Keeps what the nodes of PPP serve, and compares what each one serves since."""
        begins = not self._served_to
        if begins:
            self._served_to = min(COMPARED_MAX, *(self._durable(name) for name in self.group.listed))
        served = [await self._pages(self.group.urls[name]) for name in self.group.listed]
        if begins:
            self._served = min(served, key=lambda each: len(each[1]))
        lines, blocks = self._served
        assert lines and blocks
        for name, (own_lines, own_blocks) in zip(self.group.listed, served, strict=True):
            if own_lines != lines or not own_blocks.startswith(blocks):
                self._finds(f"{name} serves other bytes than before, up to VLSN {self._served_to}")
        self.counts["nodes that serve the same bytes"] += len(served)
        self._says(f"{len(served)} nodes serve the same {len(lines) + len(blocks):,} bytes")

    async def _pages(self, url: str) -> tuple[bytes, bytes]:
        """Returns the lines up to ``_served_to`` as it serves them, and the blocks up to there or further."""
        found = []
        for headers in ({}, BLOCKS):
            at, pages = 1, b""
            while at <= self._served_to:
                asked = f"{url}/v1/entries?from={at}&limit={self._served_to + 1 - at}&kinds=all"
                response = await self._served_page(asked, headers)
                pages, at = pages + bytes(response.body), int(response.headers["Vlsnlog-Next"])
            found.append(pages)
        return found[0], found[1]

    async def _served_page(self, url: str, headers: Mapping[str, str]) -> Response:
        """Asks for a page of entries; again, as long as kills may have ended the node."""
        until_s = asyncio.get_running_loop().time() + (WAIT_S if self.kills else 0.0)
        while True:
            try:
                response = await self.network.request("GET", url, headers=headers, timeout_s=ORDER_S)
                if "Vlsnlog-Next" in response.headers:
                    return response
                error = problem.error_of(bytes(response.body))
            except VlsnLogError as fault:
                error = fault
            if asyncio.get_running_loop().time() >= until_s:
                raise Stuck(f"{url} serves no entries: {error}")
            await asyncio.sleep(POLL_S)

    async def _dry_run(self) -> None:
        status, found = await self._vlsnlog("group", "upgrade", "--dry-run", "--json")
        until_s = asyncio.get_running_loop().time() + WAIT_S
        while self.kills and found.get("master") is None and asyncio.get_running_loop().time() < until_s:
            status, found = await self._vlsnlog("group", "upgrade", "--dry-run", "--json")
        if status not in (0, 1) or found.get("possible") is not (status == 0):
            self._finds(f"group upgrade --dry-run ends with {status} and {found}")
            return
        behind = [name for name in self.group.listed if self._top[self._codes[name].letter] < found["next"]]
        if behind and status == 0:
            self._finds(f"the dry run promises level {found['next']}, which {', '.join(behind)} does not speak")
        if not behind and status == 1:
            await self._may_be_raised()
        if self._codes[found["master"]] is self.current and not all(name in found["why_not"] for name in behind):
            self._finds(f"the dry run names not all of {', '.join(behind)}: {found['why_not']}")
        self.counts["dry runs"] += 1

    async def _may_be_raised(self) -> None:
        """Waits until the dry run says yes. A master hears the levels of a restarted member within seconds."""

        async def possible() -> bool:
            return (await self._vlsnlog("group", "upgrade", "--dry-run", "--json"))[0] == 0

        await self._until(possible, "the dry run says that the level can be raised")

    # A change of a node's version.

    async def _change(self, name: str, code: Code) -> None:
        """Ends it cleanly and starts it with ``code``. Neither its level nor its durable end falls."""
        before = self._status(name)
        await self.group.stop([name], REASON, signal.SIGTERM)
        clean = self.group.node(name).ended == 0
        if not clean and not self._was_killed(name):
            self._finds(f"{name} {self.group.node(name).how_it_ended()}: {self.group.node(name).last_words()}")
        self._gives(name, code)
        self.group.start_again([name], REASON)
        await self._open_again(name, before if clean else {})
        await self._follows(name)
        self.counts[f"changes to {code.letter}"] += 1
        self._says(f"{name} runs {code.letter}")

    async def _open_again(self, name: str, before: dict[str, Any]) -> None:
        """Compares its first status with its log open to that of before it was ended."""

        async def opened() -> bool:
            status = self._status(name)
            return status.get("log") is not None and status.get("process") != before.get("process")

        await self._until(opened, f"{name} has opened its log")
        now = self._status(name)
        for what in ("level", "dtvlsn"):
            if now[what] < (before.get(what) or 0):
                self._finds(f"{name} reports {what} {now[what]} after {before[what]}")

    async def _follows(self, name: str) -> None:
        async def follows() -> bool:
            return self._status(name).get("state") in ("MASTER", "REPLICA") and self._caught_up(name)

        await self._until(follows, f"{name} leads or follows")

    def _was_killed(self, name: str) -> bool:
        """Says whether the nemesis has ended the node's process."""
        return self.kills and self.group.node(name).ended == -signal.SIGKILL

    def _gives(self, name: str, code: Code) -> None:
        self._codes[name] = code
        code.run_by(self.group, name)

    # The raise.

    async def _raised(self, name: str) -> None:
        """Raises the group to the highest level of this version; then ``name`` cannot go back."""
        top = self._top["C"]
        if top <= self._top["P"]:
            self._says(f"both versions speak up to level {top}: no raise, and no node is refused")
            return
        while self._level() < top:
            level = self._level() + 1
            await self._may_be_raised()
            status, found = await self._vlsnlog("group", "upgrade", "--json")
            if (status != 0 or found.get("level") != level) and not self.kills:
                raise Stuck(f"group upgrade ends with {status}: {found}")

            async def raised(level: int = level) -> bool:
                if self.kills and 0 < self._level() < level:  # the order went to a master that was killed
                    await self._vlsnlog("group", "upgrade", "--json")
                return all(int(self._status(each).get("level") or 0) >= level for each in self.group.listed)

            await self._until(raised, f"all are at level {level}")
            self.counts["raises"] += 1
            self._says(f"the group is at level {level}")
        await self._worked()
        await self._refused(name)

    async def _refused(self, name: str) -> None:
        await self.group.stop([name], REASON, signal.SIGTERM)
        self.previous.run_by(self.group, name)
        before, node = contents(self.group.directory(name)), self.group.node(name)
        node.start()
        await self._until(_at_once(lambda: not node.running), f"{name} of P ends")
        while self._was_killed(name):
            node.start()
            await self._until(_at_once(lambda: not node.running), f"{name} of P ends")
        after = contents(self.group.directory(name))
        if node.ended != 2:
            self._finds(f"{name} of P {node.how_it_ended()}: {node.last_words()}")
        if differ := sorted(each for each in before.keys() | after.keys() if before.get(each) != after.get(each)):
            self._finds(f"{name} of P has changed {', '.join(differ)}")
        self._says(f"{name} of P {node.how_it_ended()}: {node.last_words()}")
        self.counts["refusals"] += 1
        self._gives(name, self.current)
        self.group.start_again([name], REASON)
        await self._follows(name)

    # What is seen and said.

    def _status(self, name: str) -> dict[str, Any]:
        return self.watch.statuses.get(name, {})

    def _first(self, name: str) -> int:
        return int((self._status(name).get("range") or {}).get("first") or 0)

    def _durable(self, name: str) -> int:
        return int(self._status(name).get("dtvlsn") or 0)

    def _level(self) -> int:
        return int(self._status(self.watch.master or "").get("level") or 0)

    def _caught_up(self, name: str) -> bool:
        return self._durable(name) + WORKED * 10 >= max(self._durable(each) for each in self.group.listed)

    async def _until(self, holds: Callable[[], Any], what: str) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + WAIT_S
        while not await holds():
            if loop.time() > until_s:
                states = {name: self._status(name).get("state", "UNREACHABLE") for name in self.group.names}
                raise Stuck(f"not within {WAIT_S:.0f} s: {what}; {states}")
            await asyncio.sleep(POLL_S)

    async def _order(self, name: str, what: str) -> None:
        """Orders it of one node, which may refuse it."""
        try:
            await order(self.network, self.group.urls[name], what, timeout_s=ORDER_S)
        except VlsnLogError:
            return

    async def _vlsnlog(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        urls = ",".join(self.group.urls[name] for name in self.group.listed)
        return await command(*arguments, "--url", urls)

    def _finds(self, what: str) -> None:
        self.findings.append((self.mix, what))
        self._says(f"NOT so: {what}")

    def _says(self, what: str) -> None:
        self.recorder.record("upgrade", "info", "upgrade", {"mix": self.mix, "said": what})
        self.say(f"{self.recorder.now_s():6.1f} s  {self.mix}  {what}")


def contents(directory: Path) -> dict[str, bytes]:
    """Reads every file of a stopped node but those that any start writes."""
    files = (each for each in directory.rglob("*") if each.is_file() and each.name not in CHANGING_FILES)
    return {str(each.relative_to(directory)): each.read_bytes() for each in files}


def _at_once(holds: Callable[[], bool]) -> Callable[[], Any]:
    async def asked() -> bool:
        return holds()

    return asked
