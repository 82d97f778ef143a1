"""Rotations of the key and of the certificates while a workload and faults go on, and the move to TLS.

    key            key add ─► every node accepts it ─► key use ─► every node signs with it ─► key drop
    certificates   new ones of the same authority ─► every node shows its own
    authority      both trusted by nodes and clients ─► certificates of the new one ─► the old one trusted by none
    move           off ─► allow ─► clients use https ─► group move ─► require; one node after the other

Each step changes an operator's file by the command of docs/access.md, and brings it to the nodes
(``credentials``). The commands refuse a step while a member is silent; it is tried again then. Rotations begin evenly
over the run. Those of the key go on beside those of certificates.
"""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from harness.group.nodes import Group
from harness.group.watch import Watch
from harness.ops import Recorder
from harness.orders import command
from harness.rotating.credentials import ALLOW, PROBE, REQUIRE, CommandFailed, Credentials
from harness.rotating.probes import shown, trusts
from repl.cluster import KEY_FILE
from repl.net.tls import LOOK_S

KEY, CERTIFICATES, AUTHORITY, MOVE = "key", "certificates", "authority", "move to TLS"
POLL_S: Final = 0.2
AGAIN_S: Final = 0.5
MORE_S: Final = 120.0
"""Seconds that rotations may need after the faults have ended."""
CLIENTS_LOOK_S: Final = LOOK_S + 1.0
"""Seconds until each client has read its authorities again."""
REASON: Final = "move"


@dataclass
class Rotation:
    """One rotation: the seconds into the run of its beginning, and of the end of each step."""

    what: str
    number: int
    began_s: float
    steps: dict[str, float] = field(default_factory=dict)
    done: bool = False
    refused: int = 0
    """Commands that were refused because of a silent member, and tried again."""
    said: str = ""
    """The text of the last refusal."""

    def __str__(self) -> str:
        steps = ", ".join(f"{step} {at:.1f}" for step, at in self.steps.items())
        end = "done" if self.done else f"NOT DONE: {self.said}" if self.said else "NOT DONE"
        return f"{self.what} {self.number}: {self.began_s:.1f} s: {steps}: {end}"


@dataclass(frozen=True, slots=True)
class Asked:
    """The rotations of a run."""

    keys: int = 0
    certificates: int = 0
    """Besides, the authority is exchanged once, in the middle."""
    move: bool = False

    def __bool__(self) -> bool:
        return bool(self.keys or self.certificates or self.move)

    @property
    def count(self) -> int:
        return self.keys + self.certificates + bool(self.certificates) + self.move


NONE: Final = Asked()


@dataclass
class Rotating:
    """The rotations of one run's group. ``prepare`` comes before the group's start."""

    group: Group
    watch: Watch
    recorder: Recorder
    credentials: Credentials
    asked: Asked
    seconds: float
    say: Callable[[str], None]
    rotations: list[Rotation] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    """Other reasons why the run is unknown."""
    _began_s: float = field(default=0.0, init=False)

    async def prepare(self) -> None:
        """Makes the first authority and certificates. Without the move, the group speaks TLS alone from its start."""
        made = await self.credentials.new_authority()
        self.credentials.clients_trust(made)
        files = await self.credentials.issue()
        await self.credentials.bring({name: {**each, **self.credentials.trust(made)} for name, each in files.items()})
        if not self.asked.move:
            for name in self.group.names:
                self.credentials.speak(name, REQUIRE)
            self._name_https(members=True)

    async def run(self) -> None:
        """Returns when all rotations are done, or ``MORE_S`` after the faults."""
        self._began_s = self.recorder.now_s()
        try:
            async with asyncio.timeout(self.seconds + MORE_S), asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keys())
                tasks.create_task(self._by_certificates())
        except TimeoutError:
            self.late.append(f"rotations went on for {MORE_S:.0f} s after the faults")

    @property
    def lacks(self) -> list[str]:
        undone = [f"not done: rotation of {each}" for each in self.rotations if not each.done]
        begun = len(self.rotations)
        undone += self.late
        return undone + ([f"{begun} of {self.asked.count} rotations have begun"] if begun < self.asked.count else [])

    # The key.

    async def _keys(self) -> None:
        old = (await self._printed("key", "list", str(self.credentials.key_file)))["signs"]
        for number in range(1, self.asked.keys + 1):
            await self._due(number, self.asked.keys)
            old = await self._key(number, old)
        await self._until(lambda: all(self._accepts(name) == [old] for name in self.group.listed))

    async def _key(self, number: int, old: str) -> str:
        """Exchanges the key ``old``; returns the ID of the new one."""
        rotation, new = self._begins(KEY, number), f"r{number}"
        await self._printed("key", "add", str(self.credentials.key_file), "--id", new)
        await self._bring_key(rotation, "add")
        await self._until(lambda: all(new in self._accepts(name) for name in self.group.listed))
        await self._ordered(rotation, "key", "use", new, str(self.credentials.key_file))
        await self._bring_key(rotation, "use")
        await self._until(lambda: all(self._accepts(name)[:1] == [new] for name in self.group.listed))
        await self._ordered(rotation, "key", "drop", old, str(self.credentials.key_file))
        await self._bring_key(rotation, "drop")
        self._ends(rotation)
        return new

    async def _bring_key(self, rotation: Rotation, step: str) -> None:
        await self.credentials.bring_all({KEY_FILE: self.credentials.key_file.read_bytes()})
        self._step(rotation, step)

    def _accepts(self, name: str) -> list[str]:
        """Returns the keys that the node accepts, the one that signs first; none without an answer."""
        return list((self.watch.statuses.get(name, {}).get("key") or {}).get("accepts", ()))

    # Certificates.

    async def _by_certificates(self) -> None:
        if self.asked.move:
            await self._move()
        count = self.asked.certificates
        for number in range(1, count + 1):
            await self._due(number, count)
            if number == count // 2 + 1:
                await self._authority()
            rotation = self._begins(CERTIFICATES, number)
            await self._reissue(rotation)
            self._ends(rotation)

    async def _reissue(self, rotation: Rotation) -> None:
        await self.credentials.bring(await self.credentials.issue())
        self._step(rotation, "issued")
        await self._everywhere(self._shows)
        self._step(rotation, "shown")

    async def _shows(self, name: str) -> bool:
        pem = self.credentials.certificate(name).decode()
        return await shown(self.group.urls[name]) == ssl.PEM_cert_to_DER_cert(pem)

    async def _authority(self) -> None:
        rotation = self._begins(AUTHORITY, 1)
        old = self.credentials.authority
        new = await self.credentials.new_authority()
        self.credentials.clients_trust(old, new)
        await self.credentials.bring_all(self.credentials.trust(old, new))

        async def trusts_new(name: str) -> bool:
            return await trusts(self.group.urls[name], new, PROBE) is True

        await self._everywhere(trusts_new)
        await asyncio.sleep(CLIENTS_LOOK_S)
        self._step(rotation, "both trusted")
        await self._reissue(rotation)
        await self.credentials.bring_all(self.credentials.trust(new))
        self.credentials.clients_trust(new)

        async def refuses_old(name: str) -> bool:
            return await trusts(self.group.urls[name], old, PROBE) is False

        await self._everywhere(refuses_old)
        self._step(rotation, "old dropped")
        self._ends(rotation)

    # The move to TLS.

    async def _move(self) -> None:
        rotation = self._begins(MOVE, 1)
        for name in self.group.names:
            await self._speaks(name, ALLOW)
        self._step(rotation, ALLOW)
        self._name_https(members=False)
        for name in self.group.listed:
            url = self.group.member_urls[name].replace("http://", "https://")
            await self._ordered(rotation, "group", "move", f"{name}={url}")
        self._step(rotation, "moved")
        self._name_https(members=True)
        for name in self.group.names:
            await self._speaks(name, REQUIRE)
        self._step(rotation, REQUIRE)
        self._ends(rotation)

    async def _speaks(self, name: str, tls: str) -> None:
        """Starts a node again with another setting; returns when it leads or follows."""
        process = self.watch.statuses.get(name, {}).get("process")
        await self.group.stop([name], REASON, signal.SIGTERM)
        self.credentials.speak(name, tls)
        self.group.start_again([name], REASON)

        def follows() -> bool:
            status = self.watch.statuses.get(name, {})
            return status.get("process") not in (None, process) and status.get("state") in ("MASTER", "REPLICA")

        await self._until(follows)

    def _name_https(self, *, members: bool) -> None:
        """Lets clients use https, and the nodes' settings too, for members at their next start."""
        for name, url in self.group.urls.items():
            self.group.urls[name] = self.group.node(name).url = url.replace("http://", "https://")
        if members:
            for name, url in self.group.member_urls.items():
                self.group.member_urls[name] = url.replace("http://", "https://")
            self.group.are_members(self.group.listed, self.group.electable)

    # Orders, waits, notes.

    async def _printed(self, *arguments: str) -> dict[str, Any]:
        status, found = await command(*arguments, "--json")
        if status != 0:
            raise CommandFailed(f"vlsnlog {' '.join(arguments)}: {found}")
        return found

    async def _ordered(self, rotation: Rotation, *arguments: str) -> None:
        """Repeats a command that asks the members, until it is not refused."""
        while True:
            urls = ",".join(self.group.urls[name] for name in self.group.listed)
            status, found = await command(*arguments, "--json", "--url", urls)
            if status == 0:
                return
            rotation.refused += 1
            rotation.said = json.dumps(found)[:300]
            value = {"what": rotation.what, "number": rotation.number, "refused": " ".join(arguments[:3])}
            self.recorder.record("operator", "info", "rotate", value | {"said": rotation.said})
            await asyncio.sleep(AGAIN_S)

    async def _everywhere(self, holds: Callable[[str], Awaitable[bool]]) -> None:
        """Returns once each member has been seen such that ``holds``."""
        left = list(self.group.listed)
        while left:
            seen = await asyncio.gather(*map(holds, left))
            left = [name for name, so in zip(left, seen, strict=True) if not so]
            await asyncio.sleep(POLL_S)

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():  # noqa: ASYNC110  other processes' states
            await asyncio.sleep(POLL_S)

    async def _due(self, number: int, count: int) -> None:
        """Returns when the rotation ``number`` of ``count`` may begin."""
        await asyncio.sleep(max(0.0, self._began_s + (number - 1) * self.seconds / count - self.recorder.now_s()))

    def _begins(self, what: str, number: int) -> Rotation:
        rotation = Rotation(what, number, self.recorder.now_s())
        self.rotations.append(rotation)
        self.recorder.record("operator", "info", "rotate", {"what": what, "number": number, "step": "begins"})
        return rotation

    def _step(self, rotation: Rotation, step: str) -> None:
        rotation.steps[step] = self.recorder.now_s()
        value = {"what": rotation.what, "number": rotation.number, "step": step}
        self.recorder.record("operator", "info", "rotate", value)

    def _ends(self, rotation: Rotation) -> None:
        rotation.done = True
        self.say(f"{self.recorder.now_s():6.1f} s  rotated {rotation}")
