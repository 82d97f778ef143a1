"""Resolves two different blocks at one VLSN, each with valid checksums: decides which copy is the group's.

    syncup finds them different ─► GET /v1/peer/copy of every electable member ─► counted by SHA-256
        SOUND     a majority has the same block as this node: the other side finds that its own copy differs
        MINORITY  a majority has another block: a master stops leading, and this node's log is restored; its newest
                  segments are kept aside; the node halts instead if it knows that its own block is durable
        OPEN      silent members could still complete a majority: they are asked again at the next try
        SPLIT     no block can have a majority, so no count shows which copy is right: the node halts for a person

Each copy counts, durable or not, whichever node is the master. The block that a majority has now need not be the
acknowledged block, because a majority's disks may be old images. So before a log is replaced without a person's
request, the block at its durable end is compared with every member's block. If another member has a different block
there, this node keeps its durable block.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Any

import msgspec

from feeder.majority import majority
from repl.group.member import Member
from repl.group.peers import get
from repl.repair.providing import block_at, check_names
from repl.repair.restoring import Restoration
from vlsn.errors import BadBody, Damaged, Halted, NotFound, NotMaster, Trimmed, Unreachable, VlsnLogError
from vlsn.format.feed_messages import Number
from vlsn.format.json_messages import read_json
from vlsn.ids import NodeName, Vlsn
from vlsn.together import failure_of

REST_S = 0.5
"""After the first answer, this node waits this many seconds for the other members before it gives its log up."""


class Verdict(StrEnum):
    SOUND = "sound"
    MINORITY = "minority"
    OPEN = "open"
    SPLIT = "split"


class Copy(msgspec.Struct, frozen=True):
    """The block that contains a VLSN in one node's log."""

    term: Number
    first: Number
    last: Number
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    durable: Number = 0
    """The VLSN up to which the answering node knows its log to be durable."""


@dataclass(frozen=True, slots=True)
class Weighed:
    verdict: Verdict
    others: frozenset[NodeName]
    """Members whose block differs from the majority's; empty if there is no majority."""
    silent: tuple[NodeName, ...]
    """Electable members that have not answered."""


def weigh(copies: Mapping[NodeName, str], electable: Collection[NodeName], own: NodeName) -> Weighed:
    """Counts ``copies``, the digests of the members' blocks, this node's block included."""
    needed = majority(len(electable))
    counts = Counter(copies[name] for name in electable if name in copies)
    silent = tuple(sorted(name for name in electable if name not in copies))
    best, most = max(counts.items(), key=lambda item: item[1], default=("", 0))
    if most < needed:
        verdict = Verdict.OPEN if most + len(silent) >= needed else Verdict.SPLIT
        return Weighed(verdict, frozenset(), silent)
    others = frozenset(name for name, digest in copies.items() if digest != best)
    return Weighed(Verdict.MINORITY if own in others else Verdict.SOUND, others, silent)


def _advice(member: Member) -> str:
    config = member.config
    urls = " ".join(dict.fromkeys((config.url, *member.members.urls.values())))
    return (
        f"Nothing of this log was changed. Keep all directories, and compare them: `vlsnlog audit {urls}`; "
        f"`vlsnlog restore --url {config.url}` gives this node's log up"
    )


async def resolve(member: Member, restoration: Restoration, vlsn: int, said: str) -> str:
    """Decides about a difference at ``vlsn``. ``said`` describes the difference. Requests a restore if one is needed.
    Returns the reason for the node's status. Raises ``Halted``."""
    said = f"integrity: {said}"
    if not vlsn:
        raise Halted(f"{said}. {_advice(member)}")
    try:
        weighed = await look(member, Vlsn(vlsn))
    except (NotFound, Damaged, Trimmed, NotMaster) as error:
        return f"{said}; this node cannot read its own block: {error}"
    if weighed.verdict is Verdict.SPLIT:
        raise Halted(f"{said}; no majority of the members has the same block. {_advice(member)}")
    if weighed.verdict is Verdict.OPEN:
        return f"{said}; waits for the copy of {', '.join(weighed.silent)}"
    if weighed.verdict is Verdict.SOUND:
        return f"{said}; most members have the same block as this node"
    said = f"{said}; most members have another block"
    if vlsn <= member.opened().log.view.dtvlsn:
        raise Halted(f"{said}, and this node knows its own to be durable. {_advice(member)}")
    silent = await agree_where_durable(member, said)
    restoration.want(said, avoid=weighed.others, silent=silent, keep=True)
    return f"{said}, this log is restored"


async def agree_where_durable(member: Member, said: str) -> frozenset[NodeName]:
    """Checks the block at this log's durable end before the log is given up for the reason ``said``. No member may have
    a different block that it knows to be durable, and no majority may have a different block. Returns the members that
    have not answered; they must not be providers of a restore. Raises ``Halted``, and ``Unreachable`` if no member
    answers."""
    log, own = member.opened().log, NodeName(member.config.name)
    at = Vlsn(min(log.view.dtvlsn, log.view.range.last_sync))
    if at < log.view.range.first or not at:
        return frozenset()
    try:
        digest = (await own_copy(member, at)).sha256
    except Damaged:
        digest = ""  # the block itself cannot be read; only its term is known
    term = log.view.history.term_of(at)
    copies: dict[NodeName, Copy] = {}
    told: set[NodeName] = set()

    async def one(name: NodeName) -> None:
        # Trimmed: the member has cleaned that VLSN away. If a member's log ends earlier, it does not count as an
        # answer.
        with suppress(Trimmed):
            copies[name] = await _ask(member, name, at)
        told.add(name)

    others = [name for name in member.members.electable if name != own]
    asked = {asyncio.create_task(one(name), name=f"copy of {name}") for name in others}
    try:
        waiting = asked
        while waiting and not told:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if waiting:
            await asyncio.wait(waiting, timeout=REST_S)
    finally:
        for task in asked:
            task.cancel()
    for task in asked:
        fault = failure_of(task) if task.done() else None
        if fault is not None and not isinstance(fault, VlsnLogError | OSError):
            raise fault
    if not told:
        raise Unreachable(f"{said}; no other member reports its block at VLSN {at}")
    differ = [name for name, copy in copies.items() if (copy.term, copy.sha256) != (term, digest or copy.sha256)]
    durable = [name for name in differ if copies[name].durable >= at]
    if durable or len(differ) >= majority(len(member.members.electable)):
        member.event("integrity", vlsn=at, verdict="durable", copies=" ".join(sorted(differ)), silent="")
        raise Halted(
            f"{said}; at VLSN {at}, up to which this node knows its log durable, {', '.join(sorted(differ))} "
            f"hold{'s' * (len(differ) == 1)} another block. {_advice(member)}"
        )
    return frozenset(others) - told


async def look(member: Member, vlsn: Vlsn) -> Weighed:
    """Asks every electable member once for its block. Raises ``NotFound``, ``Damaged``, ``Trimmed`` or ``NotMaster``
    for this node's own block."""
    own = NodeName(member.config.name)
    electable = member.members.electable
    copies = {own: (await own_copy(member, vlsn)).sha256}

    async def one(name: NodeName) -> None:
        try:
            copies[name] = (await _ask(member, name, vlsn)).sha256
        except (VlsnLogError, OSError, TimeoutError):
            pass  # the member has not answered

    await asyncio.gather(*(one(name) for name in electable if name != own))
    weighed = weigh(copies, electable, own)
    told = " ".join(f"{name}:{copies[name][:12]}" for name in sorted(copies))
    member.event("integrity", vlsn=vlsn, verdict=weighed.verdict, copies=told, silent=" ".join(weighed.silent))
    return weighed


async def answer_copy(member: Member, asked: Mapping[str, str], vlsn: int) -> dict[str, Any]:
    """Answers ``GET /v1/peer/copy``: the block of this node that contains ``vlsn``, and the block's SHA-256. Raises
    ``WrongGroup``, ``WrongName``, ``NotFound``, ``Damaged``, ``Trimmed``."""
    check_names(member, asked.get("group", ""), asked.get("sender", ""), asked.get("to", ""))
    return msgspec.structs.asdict(await own_copy(member, Vlsn(vlsn)))


async def own_copy(member: Member, vlsn: Vlsn) -> Copy:
    block, header = await block_at(member, vlsn)
    digest = sha256(block).hexdigest()
    return Copy(header.term, header.first_vlsn, header.last_vlsn, digest, member.opened().log.view.dtvlsn)


async def _ask(member: Member, name: NodeName, vlsn: Vlsn) -> Copy:
    copy = read_json(await get(member, name, "/v1/peer/copy", vlsn=vlsn), Copy, f"the copy of {name}")
    if not copy.first <= vlsn <= copy.last:
        raise BadBody(f"{name} reported block ({copy.term}, {copy.first}) to {copy.last}, asked for VLSN {vlsn}")
    return copy
