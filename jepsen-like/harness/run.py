"""A run: a group of real nodes under faults, concurrent clients, and the checks of their answers.

    start ─► clients work under faults ─► all faults end ─► the group heals: an append by each writer,
    every reader at its end ─► every node is read whole ─► nodes stop ─► verify, audit, checks ─► verdict

The verdict is *valid* only if no check failed **and** the run showed enough: at least ``ACKNOWLEDGED_MIN`` acknowledged
appends, an effect of every requested kind of fault, and every node read to the end.  Without these it is *unknown*.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from harness import judge
from harness.captures.checks import check_captures, counts_of
from harness.captures.disk_log import DiskLog, read_disk_log
from harness.captures.observing import Observer
from harness.captures.recording import recording_of
from harness.captures.settings import give_consumers
from harness.checks import Anomaly, Found, check
from harness.group.nodes import SETTINGS, Group, Refused, SomeUrls, make_group
from harness.group.watch import Watch
from harness.nemesis import clock, disk
from harness.nemesis.changing import SPARES
from harness.nemesis.nemesis import Nemesis
from harness.nemesis.plan import WAYS, plan
from harness.ops import Op, Recorder, read_history
from harness.person import Person
from harness.report.progress import Progress
from harness.rotating.credentials import Credentials, trusting
from harness.rotating.rotations import NONE as NO_ROTATIONS
from harness.rotating.rotations import Asked, Rotating, Rotation
from harness.upgrading import SETTINGS as UPGRADE_SETTINGS
from harness.upgrading import Code, Upgrade
from harness.workloads import destinations
from harness.workloads.reading import Positions, follow, look, read_all
from harness.workloads.work import Work, work_of
from harness.workloads.writing import append_once
from repl.net.network import AiohttpNetwork
from vlsn.errors import BadArgument
from vlsnlog.testing.partitions import UNSHAPED, Shape

ACKNOWLEDGED_MIN: Final = 1000
HEAL_S: Final = 60.0
"""Seconds after the last fault in which the group must serve, and readers must reach the end."""
DRAIN_S: Final = 120.0
"""Seconds in which consumers must take all remaining messages at the end."""
UPGRADE_DRAIN_S: Final = 400.0
"""The same limit for an upgraded group, whose restored nodes fetch their pages again, one gap at a time."""
LOOKS_A_SECOND: Final = 3.0
POLL_S: Final = 0.1
CANCEL_AGAIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run."""

    workload: str
    kinds: tuple[str, ...]
    nodes: int
    seconds: float
    seed: int
    rate: float
    writers: int
    interval_s: float | None = None
    kill_ways: Sequence[str] = WAYS["kill"]
    disk_ways: Sequence[str] = WAYS["disk"]
    audit: bool = True
    between: str = "auto"
    """The kind of network between the nodes: ``namespaces``, ``proxies``, or the first that the machine allows."""
    settings: Mapping[str, str | int | float] = field(default_factory=lambda: SETTINGS)
    """A workload's own settings are added."""
    shape: Shape = UNSHAPED
    """The shape of each directed pair of nodes."""
    upgrade_from: Code | None = None
    """The version that the nodes run at first (``harness.upgrading``); the upgrade lasts as long as it does."""
    rotations: Asked = NO_ROTATIONS
    """The rotations of key and certificates; the run lasts until they are done."""


@dataclass(slots=True)
class Outcome:
    """The outcome of a run."""

    options: Options
    between: str = ""
    """The kind of network that was used: proxies or namespaces."""
    found: Found = field(default_factory=Found)
    lacks: list[str] = field(default_factory=list)
    """Reasons why the run is *unknown*."""
    ops: dict[str, int] = field(default_factory=dict)
    polls: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    ways: dict[str, int] = field(default_factory=dict)
    masters: list[tuple[int, str]] = field(default_factory=list)
    entries: int = 0
    """Entries that were read and checked in the final reads."""
    audited: int = 0
    """Acknowledged entries that the Spark audit found in every node's directory."""
    members: list[str] = field(default_factory=list)
    """The members at the end."""
    captures: dict[str, int] = field(default_factory=dict)
    """The counts of the events that consumers inside the nodes received."""
    upgraded: dict[str, int] = field(default_factory=dict)
    """The counts of the upgrade's steps."""
    rotated: list[Rotation] = field(default_factory=list)
    missed: int = 0
    """Files of rotations that stopped nodes got before their next start."""

    @property
    def valid(self) -> bool | str:
        if self.found:
            return False
        return "unknown" if self.lacks else True

    @property
    def exit_status(self) -> int:
        if self.valid == "unknown":
            return 2
        return 0 if self.valid else 1


def check_options(options: Options) -> None:
    """Raises ``BadArgument`` for options that cannot run here."""
    if "clock" in options.kinds and clock.find_library() is None:
        raise BadArgument(f"--nemesis clock needs {clock.PACKAGE}")
    if "disk" in options.kinds and any(way.startswith("eio") for way in options.disk_ways) and not disk.may_trace():
        raise BadArgument(
            "--nemesis disk fails calls by strace, which is missing here or may not trace; or leave out eio"
        )
    if work_of(options.workload).captures and (lost := {"disk", "members"} & set(options.kinds)):
        raise BadArgument(f"--workload cdc judges positions that no disk has lost; leave out {', '.join(sorted(lost))}")
    if options.upgrade_from is not None and (own := {"disk", "members", "cleaning", "transfer"} & set(options.kinds)):
        raise BadArgument(f"--upgrade-from wipes, cleans, transfers and changes members itself; leave out {min(own)}")
    if options.rotations and options.upgrade_from is not None:
        raise BadArgument("rotations of this version's files are not known to a previous one; leave out --upgrade-from")
    if options.rotations and (odd := {"clock", "members"} & set(options.kinds)):
        raise BadArgument(
            f"rotations: {min(odd)}: certificates are judged by clocks, and members are asked by name; leave it out"
        )


async def run(options: Options, directory: Path, *, progress: Progress) -> Outcome:
    """Runs in ``directory``, which gets the nodes' directories and ``history.jsonl``; blocks until the end."""
    outcome = Outcome(options)
    recorder = Recorder(directory / "history.jsonl")
    network, secrets = AiohttpNetwork(), ExitStack()
    try:
        group = await _group(outcome, directory / "nodes", network, progress)
        captures = directory / "captures" if work_of(options.workload).captures else None
        if captures is not None:
            captures.mkdir()
            give_consumers(group, captures, options.seed)
        if "clock" in options.kinds:
            _give_clocks(group)
        watch = Watch(group.urls, network, recorder)
        rotating = await _secured(options, group, watch, recorder, directory / "secrets", secrets, progress)
        fragile = disk.minority(group.founders, Random(f"{options.seed} disk"))
        nemesis = Nemesis(group, watch, network, recorder, fragile=fragile)
        observer = Observer(group, watch, recorder, captures, options.seed) if captures is not None else None
        progress.of(recorder, watch, nemesis)
        upgrade = None
        if options.upgrade_from is not None:
            work = work_of(options.workload)
            upgrade = Upgrade(
                *(group, watch, nemesis.changing, recorder, network, work, progress.say, options.upgrade_from),
                kills="kill" in options.kinds,
            )
        try:
            await _stages(
                _Run(options, outcome, group, watch, nemesis, recorder, network, progress, observer, upgrade, rotating)
            )
        finally:
            await group.close()
            if observer is not None:
                observer.look_at_the_end()
        outcome.masters, outcome.members = list(watch.masters), list(group.listed)
    finally:
        secrets.close()
        await network.close()
        recorder.close()
    outcome.ops = dict(recorder.counts)
    outcome.faults = {kind: nemesis.struck[kind] for kind in options.kinds}
    outcome.ways = dict(sorted(nemesis.ways.items()))
    progress.stage("checks the history")
    history = await asyncio.to_thread(read_history, directory / "history.jsonl")
    outcome.polls = sum(op.f == "poll" and op.type == "ok" for op in history)
    outcome.entries = sum(len(op.value["vlsns"]) for op in history if op.f == "final")
    outcome.found = await asyncio.to_thread(check, history)
    if upgrade is not None:
        _note_upgrade(outcome, upgrade)
    if rotating is not None:
        outcome.rotated, outcome.missed = rotating.rotations, rotating.credentials.missed
        outcome.lacks += rotating.lacks
    directories = {name: group.directory(name) for name in group.names if group.used(name)}
    progress.stage("verifies the directories")
    await _verify(outcome, directories)
    if rotating is not None:
        for anomaly in judge.refusals(directories):
            outcome.found.add(anomaly)
    directories = {name: directories[name] for name in group.listed}
    if captures is not None:
        progress.stage("checks what consumers were given")
        await asyncio.to_thread(_check_captures, outcome, history, captures, recorder.began_ns, directories)
    if options.audit:
        progress.stage("audits them by Spark")
        await _audit(outcome, history, directories, directory / "acknowledged.jsonl")
    _lacks(outcome)
    return outcome


async def _group(outcome: Outcome, directory: Path, network: AiohttpNetwork, progress: Progress) -> Group:
    options = outcome.options
    work = work_of(options.workload)
    spares = SPARES if "members" in options.kinds else 0
    small = {}
    if options.upgrade_from is not None and work.destinations:
        spares, small = 1, UPGRADE_SETTINGS
    making = partial(
        make_group,
        directory,
        network,
        nodes=options.nodes,
        settings={**options.settings, **work.settings, **small},
        spares=spares,
        shape=options.shape,
    )
    outcome.between = "namespaces" if options.between == "auto" else options.between
    try:
        group = await making(between=outcome.between)
    except Refused as refused:
        if options.between != "auto":
            raise BadArgument(f"--between {options.between}: {refused}") from None
        progress.say(f"between the nodes: proxies; this machine refuses network namespaces: {refused}")
        outcome.between = "proxies"
        return await making(between=outcome.between)
    progress.say(f"between the nodes: {outcome.between}")
    return group


@dataclass(frozen=True, slots=True)
class _Run:
    options: Options
    outcome: Outcome
    group: Group
    watch: Watch
    nemesis: Nemesis
    recorder: Recorder
    network: AiohttpNetwork
    progress: Progress
    observer: Observer | None
    upgrade: Upgrade | None
    rotating: Rotating | None


async def _secured(
    options: Options,
    group: Group,
    watch: Watch,
    recorder: Recorder,
    directory: Path,
    secrets: ExitStack,
    progress: Progress,
) -> Rotating | None:
    """Gives the nodes a key and certificates of their own, if they are to be rotated."""
    if not options.rotations:
        return None
    credentials = Credentials(group, directory, Random(f"{options.seed} credentials"))
    secrets.enter_context(trusting(credentials.clients))
    rotating = Rotating(group, watch, recorder, credentials, options.rotations, options.seconds, progress.say)
    await rotating.prepare()
    return rotating


async def _stages(run: _Run) -> None:
    run.progress.stage("starts")
    await run.group.start()
    run.nemesis.changing.begin()
    work = work_of(run.options.workload)
    if work.destinations:
        await destinations.make(run.group.urls, run.recorder)
    async with _background(run):
        positions, settled = Positions(), asyncio.Event()
        readers = _readers(run, work, positions, settled)
        try:
            run.progress.stage("runs", run.options.seconds)
            await _work(run, work)
            run.progress.stage("heals", HEAL_S)
            await run.group.links.heal()
            run.group.release()
            settled.set()
            if run.observer is not None:
                run.observer.settle()
            last = await _healed(run, work)
            if work.destinations:
                drain_s = DRAIN_S if run.upgrade is None else UPGRADE_DRAIN_S
                run.progress.stage("drains the destinations", drain_s)
                left = await destinations.drain(run.group.urls, run.recorder, last, drain_s)
                run.outcome.lacks += [f"destination {name} was not empty after {drain_s:.0f} s" for name in left]
            await _readers_done(run, positions, last)
            await _consumers_done(run, last)
        finally:
            await _end_readers(run, readers)
        run.progress.stage("reads every node")
        await _read_everything(run, last)


async def _end_readers(run: _Run, readers: list[asyncio.Task[None]]) -> None:
    """Cancels the readers. One that continues is noted as ``lost-cancel``, and cancelled again."""
    under_way = set(readers)
    while under_way:
        for reader in under_way:
            reader.cancel()
        _, under_way = await asyncio.wait(under_way, timeout=CANCEL_AGAIN_S)
        for reader in under_way:
            run.recorder.record("group", "info", "lost-cancel", {"reader": reader.get_name()})


@asynccontextmanager
async def _background(run: _Run) -> AsyncIterator[None]:
    """Runs the watch, the nodes' keeper and the progress line during the stages."""

    def ended(name: str, status: int, words: str) -> None:
        run.recorder.record("group", "info", "ended", {"node": name, "status": status}, words[:300])

    tasks = [
        asyncio.create_task(run.watch.run()),
        asyncio.create_task(run.group.watch(ended)),
        asyncio.create_task(run.progress.run()),
    ]
    if run.observer is not None:
        tasks.append(asyncio.create_task(run.observer.run()))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


async def _work(run: _Run, work: Work) -> None:
    """Runs clients and faults for the requested time."""
    options, stop = run.options, asyncio.Event()
    ways = {**WAYS, "kill": options.kill_ways, "disk": options.disk_ways}
    strikes = plan(options.seed, options.kinds, seconds=options.seconds, interval_s=options.interval_s, ways=ways)
    async with asyncio.TaskGroup() as tasks:
        for number in range(options.writers):
            rate = options.rate / options.writers
            writing = work.write(number, run.group.urls, run.recorder, options.seed, rate, stop)
            tasks.create_task(writing)
        if work.destinations:
            tasks.create_task(destinations.consume(run.group.urls, run.recorder, options.seed, stop))
        striking = tasks.create_task(run.nemesis.run(strikes))
        rotating = None if run.rotating is None else tasks.create_task(run.rotating.run())
        if run.upgrade is None:
            await asyncio.sleep(options.seconds)
        else:
            await run.upgrade.run()
        await striking
        if rotating is not None:
            await rotating
        stop.set()


def _readers(run: _Run, work: Work, positions: Positions, settled: asyncio.Event) -> list[asyncio.Task[None]]:
    """Starts readers: for each node one that reads only there, and some that read from all nodes, each with another
    first node. For each node one more reads new entries, linearizable."""
    tasks = []
    names = run.group.names
    choices = [[name] for name in names]
    choices += [names[turn % len(names) :] + names[: turn % len(names)] for turn in range(work.readers)]
    for number, order in enumerate(choices):
        process = f"r{number}"
        urls = SomeUrls(run.group.urls, order)
        chance = Random(f"{run.options.seed} {process}")
        reading = follow(process, urls, run.recorder, positions, chance=chance, restless=work.restless, settled=settled)
        tasks.append(asyncio.create_task(reading, name=process))
    for name in names:
        process = f"l{name[1:]}"
        chance = Random(f"{run.options.seed} {process}")
        urls = SomeUrls(run.group.urls, [name])
        looking = look(process, urls, run.recorder, positions, chance=chance, rate=LOOKS_A_SECOND)
        tasks.append(asyncio.create_task(looking, name=process))
    return tasks


async def _healed(run: _Run, work: Work) -> int:
    """Waits until the group serves again, by an append, and returns its VLSN, which all must reach. If they do not
    within ``HEAL_S``, returns the highest VLSN that any node knows to be durable."""
    person = Person(run.group, run.watch, run.network, run.recorder, sorted(run.group.may_end))
    looking = asyncio.create_task(person.look_after())
    try:
        async with asyncio.timeout(HEAL_S):
            if await run.nemesis.changing.at_rest(HEAL_S) is None:
                raise TimeoutError
            while True:
                async with work.appender(run.group.urls) as appender:
                    if await append_once("last", appender, run.recorder, 1, keyed=work.destinations):
                        last = int(run.recorder.ops[-1].value.get("first", 0))
                        if last:
                            break
                await asyncio.sleep(POLL_S)
            await _until(lambda: all(_serves(run, name, last) for name in run.group.listed))
            await person.scrubbed()
    except TimeoutError:
        return _not_healed(run)
    finally:
        looking.cancel()
    return last


def _serves(run: _Run, name: str, vlsn: int) -> bool:
    status = run.watch.statuses.get(name, {})
    return status.get("state") in ("MASTER", "REPLICA") and int(status.get("dtvlsn") or 0) >= vlsn


def _not_healed(run: _Run) -> int:
    """Notes each node's state; returns the highest VLSN that any of them knows to be durable."""
    statuses = run.watch.statuses
    words = []
    for name in run.group.listed:
        status = statuses.get(name, {"state": "UNREACHABLE"})
        reason = f" ({status['reason']})" if status.get("reason") else ""
        words.append(f"{name} {status['state']} up to {status.get('dtvlsn', 0)}{reason}")
    run.outcome.lacks.append(f"the group did not heal within {HEAL_S:.0f} s: {'; '.join(words)}")
    return max((int(status.get("dtvlsn") or 0) for status in statuses.values()), default=0)


async def _readers_done(run: _Run, positions: Positions, last: int) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(HEAL_S / 2):
            await _until(lambda: not positions.behind(last, run.group.listed))


async def _consumers_done(run: _Run, last: int) -> None:
    """Waits until every consumer's position has passed ``last``; the checks decide whether it has."""
    observer = run.observer
    if observer is not None:
        with suppress(TimeoutError):
            async with asyncio.timeout(HEAL_S):
                await _until(lambda: not observer.behind(last))


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  another process's state
        await asyncio.sleep(POLL_S)


async def _read_everything(run: _Run, last: int) -> None:
    """Reads members to the end, and former members as far as they serve."""
    group = run.group
    for name in group.listed:
        if not await read_all(name, group.urls[name], last, run.network, run.recorder):
            run.outcome.lacks.append(f"{name} could not be read to the end")
    for name in group.names:
        if name not in group.listed and group.running(name):
            await read_all(name, group.urls[name], last, run.network, run.recorder, member=False)


async def _verify(outcome: Outcome, directories: dict[str, Path]) -> None:
    for anomaly in [*await judge.verify(directories), *judge.faults(directories)]:
        outcome.found.add(anomaly)


async def _audit(outcome: Outcome, history: Sequence[Op], directories: dict[str, Path], path: Path) -> None:
    """Runs the audit, with the acknowledged entries in ``path``."""
    if not judge.write_acknowledged(history, path):
        outcome.lacks.append("nothing was acknowledged that an audit could look for")
        return
    found, outcome.audited, why = await judge.audit(directories, path)
    for anomaly in found:
        outcome.found.add(anomaly)
    outcome.lacks += [why] if why else []


def _check_captures(
    outcome: Outcome, history: Sequence[Op], captures: Path, began_ns: int, directories: Mapping[str, Path]
) -> None:
    """Checks the consumers' recordings against the stopped nodes' disks."""
    logs: dict[str, DiskLog] = {}
    for name, directory in directories.items():
        try:
            logs[name] = read_disk_log(directory)
        except ValueError as error:
            outcome.lacks.append(f"the consumers' check could not read a log: {error}")
    upto = min((op.value["to"] for op in history if op.f == "final" and op.type == "ok"), default=0)
    recording = recording_of(history, captures, began_ns, logs, upto=upto)
    for anomaly in check_captures(recording):
        outcome.found.add(anomaly)
    outcome.captures = counts_of(recording)
    outcome.lacks += [f"no {what}" for what, count in outcome.captures.items() if not count]


def _note_upgrade(outcome: Outcome, upgrade: Upgrade) -> None:
    outcome.upgraded = dict(sorted(upgrade.counts.items()))
    outcome.lacks += upgrade.lacks
    for mix, what in upgrade.findings:
        outcome.found.add(Anomaly("upgrade", mix, what))


def _give_clocks(group: Group) -> None:
    library = clock.find_library()
    assert library is not None
    for name in group.names:
        clock.set_offset(group.directory(name), 0.0)
        group.node(name).environment |= clock.environment(library, group.directory(name))


def _lacks(outcome: Outcome) -> None:
    if outcome.ops["ok"] < ACKNOWLEDGED_MIN:
        outcome.lacks.append(f"{outcome.ops['ok']} acknowledged appends; {ACKNOWLEDGED_MIN} are needed")
    outcome.lacks += [f"no {kind} struck" for kind, count in outcome.faults.items() if not count]
