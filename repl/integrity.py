"""Two different blocks under one VLSN, each with every checksum right: which copy is the group's.

    syncup finds them different ─► GET /v1/peer/copy of every electable member ─► counted by SHA-256
        SOUND     a majority has what this node has: the other side finds out the same of itself
        MINORITY  a majority has something else: this node's log is restored; a master stops leading for that
        OPEN      those that have not told yet could still make a majority: asked again at the next try
        SPLIT     they could not: nobody can say which copy is right, and the node halts for a person

A copy counts whoever leads, and whether or not the VLSN is durable: what a majority holds with one content is the only
content that can ever have been acknowledged.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from feeder.acks import majority
from repl.peers import get
from repl.providing import block_at, check_names
from vlsn.errors import BadBody, Damaged, Halted, NotFound, NotMaster, Trimmed, VlsnLogError
from vlsn.ids import NodeName, Vlsn
from vlsn.messages import read_json
from vlsn.stream import Number

if TYPE_CHECKING:
    from repl.node import Node


_ADVICE = "Compare the copies with 'vlsnlog audit'"


class Verdict(StrEnum):
    SOUND = "sound"
    MINORITY = "minority"
    OPEN = "open"
    SPLIT = "split"


class Copy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The block that holds a VLSN in one node's log."""

    term: Number
    first: Number
    last: Number
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True)
class Weighed:
    verdict: Verdict
    others: frozenset[NodeName]
    """Members whose copy is not the majority's, where there is a majority."""
    silent: tuple[NodeName, ...]
    """Electable members that have not told theirs."""


def weigh(copies: Mapping[NodeName, str], electable: Collection[NodeName], own: NodeName) -> Weighed:
    """What ``copies``, digests by member with ``own`` among them, prove."""
    needed = majority(len(electable))
    counts = Counter(copies[name] for name in electable if name in copies)
    silent = tuple(sorted(name for name in electable if name not in copies))
    best, most = max(counts.items(), key=lambda item: item[1], default=("", 0))
    if most < needed:
        verdict = Verdict.OPEN if most + len(silent) >= needed else Verdict.SPLIT
        return Weighed(verdict, frozenset(), silent)
    others = frozenset(name for name, digest in copies.items() if digest != best)
    return Weighed(Verdict.MINORITY if own in others else Verdict.SOUND, others, silent)


async def resolve(node: Node, vlsn: int, said: str) -> str:
    """What becomes of a fault at ``vlsn`` that ``said`` describes: a restore is wanted, or why it is to be tried
    again is returned.  Raises ``Halted``."""
    said = f"integrity: {said}"
    if not vlsn:
        raise Halted(f"{said}. {_ADVICE}")
    try:
        weighed = await look(node, Vlsn(vlsn))
    except (NotFound, Damaged, Trimmed, NotMaster) as error:
        return f"{said}; it cannot be looked at here: {error}"
    if weighed.verdict is Verdict.SPLIT:
        raise Halted(f"{said}; no majority of the members holds one of them. {_ADVICE}")
    if weighed.verdict is Verdict.OPEN:
        return f"{said}; waits for what {', '.join(weighed.silent)} will tell"
    if weighed.verdict is Verdict.SOUND:
        return f"{said}; most members hold what this node holds"
    node.restoration.want(f"{said}; most members hold another block", avoid=weighed.others)
    return f"{said}; most members hold another block, this log is restored"


async def look(node: Node, vlsn: Vlsn) -> Weighed:
    """Asks every electable member for its copy, once.  Raises ``NotFound``, ``Damaged``, ``Trimmed``, ``NotMaster`` of
    this node's own."""
    own = NodeName(node.config.name)
    electable = node.members.electable
    copies = {own: (await own_copy(node, vlsn)).sha256}

    async def one(name: NodeName) -> None:
        try:
            copies[name] = (await _ask(node, name, vlsn)).sha256
        except (VlsnLogError, OSError, TimeoutError):
            pass  # it has not told

    await asyncio.gather(*(one(name) for name in electable if name != own))
    weighed = weigh(copies, electable, own)
    told = " ".join(f"{name}:{copies[name][:12]}" for name in sorted(copies))
    node.event("integrity", vlsn=vlsn, verdict=weighed.verdict, copies=told, silent=" ".join(weighed.silent))
    return weighed


async def answer_copy(node: Node, asked: Mapping[str, str], vlsn: int) -> dict[str, Any]:
    """``GET /v1/peer/copy``: which block holds ``vlsn`` here, and its SHA-256.  Raises ``WrongGroup``, ``WrongName``,
    ``NotFound``, ``Damaged``, ``Trimmed``."""
    check_names(node, asked.get("group", ""), asked.get("sender", ""), asked.get("to", ""))
    return msgspec.structs.asdict(await own_copy(node, Vlsn(vlsn)))


async def own_copy(node: Node, vlsn: Vlsn) -> Copy:
    block, header = await block_at(node, vlsn)
    return Copy(header.term, header.first_vlsn, header.last_vlsn, sha256(block).hexdigest())


async def _ask(node: Node, name: NodeName, vlsn: Vlsn) -> Copy:
    copy = read_json(await get(node, name, "/v1/peer/copy", vlsn=vlsn), Copy, f"the copy of {name}")
    if not copy.first <= vlsn <= copy.last:
        raise BadBody(f"{name} told of block ({copy.term}, {copy.first}) to {copy.last}, asked for VLSN {vlsn}")
    return copy
