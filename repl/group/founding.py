"""Founding: how a group begins.

The founding term needs no vote. The member whose name comes first is the founder, which asks every member. Once *all*
have answered that they are empty and have no write under way, the founder stores a term above all stored terms. The
founder then writes the entries TERM and GROUP, which lists the members' incarnations (stores), as **one block**:

    ask n1 n2 n3  ─►  all empty, stored terms 0 0 2  ─►  term 3 stored, synced  ─►  block (3, 1): TERM, GROUP

After a crash before that block is synced, every log is empty, and founding starts again with a higher term. If a crash
comes later, the group exists. A member that answered accepts its first feed only from the incarnation and process that
it answered last. Pure: answers are arguments, the decision is the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from repl.auth.group_key import KEYS_MAX
from vlsn.errors import BadBody
from vlsn.format.feed_messages import Hex, Name, Number, StoredTerm
from vlsn.format.json_messages import read_json, read_object
from vlsn.format.records import MEMBERS_MAX, GroupEntry, Member
from vlsn.ids import Incarnation, NodeName, Term
from vlsn.levels import LEVEL_1, Levels

Purpose = Literal["founding", "discovery"]
MasterName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{0,32}\Z")]
MasterUrl = Annotated[str, Meta(pattern=r"^(https?://[!-~]{1,256})?\Z")]
KeyIds = Annotated[list[Annotated[str, Meta(pattern=r"^[a-z0-9]{1,16}\Z")]], Meta(max_length=KEYS_MAX)]
FOUNDING: Final = "founding"
DISCOVERY: Final = "discovery"
ALARMS_MAX: Final = 32
"""The most alarms that a node reports. If there are more, the last one reported gives their number."""


class Question(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of ``POST /v1/peer/hello``. Incarnation and process are 16 hex digits. ``term``, ``sequence``, ``told``
    and ``told_term`` are the sender's report of its promises (``old_images``)."""

    group: Name
    sender: Name
    to: Name
    incarnation: Hex
    process: Hex
    purpose: Purpose
    term: StoredTerm = 0
    sequence: Number = 0
    told: Number = 0
    url: MasterUrl = ""
    """The sender's URL."""
    group_term: Number = 0
    group_vlsn: Number = 0
    """The VLSN of the newest GROUP entry in the sender's log."""
    told_term: Number = 0
    wants_group: bool = False
    """True if the sender's log has lost its newest GROUP entry (``lost_group``)."""
    levels: Levels = LEVEL_1
    """The levels that the sender speaks. The field is left out if the sender speaks only level 1, because a release
    without levels does not know the field."""
    keys: KeyIds = []  # msgspec copies it
    """The IDs of the keys that the sender accepts. The first is the ID of the key with which the sender signs."""


class HoldPosition(msgspec.Struct, frozen=True, array_like=True):
    """The position of a member's incarnation; ``vlsn`` is 0 if the position is not known."""

    incarnation: Hex
    vlsn: Number


class KnownGroup(msgspec.Struct, frozen=True):
    """The newest GROUP entry that is known to be durable, at ``vlsn``. No later GROUP entry exists up to VLSN
    ``upto``."""

    vlsn: Number
    upto: Number
    entry: GroupEntry


class Alarm(msgspec.Struct, frozen=True):
    """A condition of a node that needs a person. ``what`` and ``why`` describe the condition as text. ``kind`` is
    stable from release to release. ``name`` is the name of the consumer or destination concerned, and ``command`` the
    command that mends or shows the condition, for a shell; "" from an older node."""

    kind: str
    name: str
    what: str
    why: str
    command: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A node's answer about itself. ``last_term`` and ``last`` are the synced end of its log. Where logs are ranked, a
    vote floor (the log's former end) above that end is used instead."""

    group: Name
    name: Name
    incarnation: Hex
    process: Hex
    term: StoredTerm
    empty: bool
    last_term: Number
    last: Number
    floor_term: Number = 0
    floor_vlsn: Number = 0
    state: str = "UNKNOWN"
    no_space: bool = False
    """True if the node has no space for appends. A master without space hands over only to a node that has space."""
    clock_us: Number = 0
    """The node's wall clock, µs since the epoch."""
    sequence: Number = 0
    told: Number = 0
    told_term: Number = 0
    """The term of the block at VLSN ``told``. ``told``, ``told_term`` and ``term`` are the node's report of its
    promises (``old_images``)."""
    master: MasterName = ""
    master_url: MasterUrl = ""
    """The master's URL, as far as the answering node knows it. A node that was away may not know that member yet."""
    heard_sequence: Number = 0
    heard_term: Number = 0
    heard_told: Number = 0
    heard_told_term: Number = 0
    """The term of the block at VLSN ``heard_told``. The four ``heard`` fields are the newest report of the asking
    node."""
    known_group: KnownGroup | None = None
    """The group as the answering node knows it, if the asking node has lost it."""
    holds: dict[Name, HoldPosition] | None = None
    """The positions from which members still need the log. Only a master sends positions (``member_holds``)."""
    levels: Levels = LEVEL_1
    """The levels that the answering node speaks."""
    members: dict[Name, MasterUrl] = {}  # msgspec copies it
    """Members and their URLs, from a list that is newer than the list of the asking node."""
    hands_to: MasterName = ""
    hands_term: Number = 0
    """The node that the answering node has asked to take over as master, and the term at that time."""
    alarms: list[Alarm] = []  # msgspec copies it
    """The answering node's alarms, at most ``ALARMS_MAX``. A release without alarms sends none."""
    keys: KeyIds = []  # msgspec copies it
    """The IDs of the keys that the answering node accepts; the first is that of the key with which it signs."""


@dataclass(frozen=True, slots=True)
class Found:
    """The decision to write the founding block in ``term``. The term must be stored before the block is written."""

    term: Term
    group: GroupEntry
    level: int = LEVEL_1.min
    """The highest level that all members speak. The founding block sets this level, unless it is the lowest one."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The decision to ask the members again. ``reason`` is shown in the status."""

    reason: str


def read_question(body: object) -> Question:
    """Decodes the body of a hello. Raises ``BadBody``."""
    return read_object(body, Question, "hello")


def read_answer(body: bytes) -> Answer:
    """Decodes another node's answer about itself. Checks that each number is in the range of a record or a block.
    Raises ``BadBody``."""
    answer = read_json(body, Answer, "no answer to a hello")
    if answer.holds is not None and len(answer.holds) > MEMBERS_MAX:
        raise BadBody(f"an answer with the positions of {len(answer.holds)} members")
    if (answer.empty and answer.last) or answer.last_term > answer.term:
        raise BadBody(f"an answer of a log to {answer.last} of term {answer.last_term}, stored term {answer.term}")
    return answer


def is_newer(at: tuple[int, int], end: tuple[int, int]) -> bool:
    """Returns whether a log with that ``end`` is missing the GROUP entry at ``at`` (term, VLSN) and may still receive
    it. The log may still receive an entry after its end. A durable entry before its end is in the log; any other entry
    before its end was rolled back."""
    return at > end


def parse_hex(text: str) -> int:
    """Parses 16 hex digits. Raises ``BadBody``."""
    if len(text) != 16 or text.strip("0123456789abcdef"):
        raise BadBody(f"{text[:40]!r} is not 16 lower-case hex digits")
    return int(text, 16)


def decide(
    group: str, members: Mapping[NodeName, str], answers: Mapping[NodeName, Answer], *, stored_term: Term
) -> Found | Wait:
    """Decides whether to found the group, from the ``answers`` of the members that have answered. ``members`` maps all
    names to URLs, the founder's included."""
    silent = [name for name in members if name not in answers]
    if silent:
        return Wait(f"founding: no answer from {', '.join(silent)}")
    full = [name for name in members if not answers[name].empty]
    if full:
        return Wait(f"not-listed: {', '.join(full)} already hold a log of this group, this node is empty")
    incarnations = {answer.incarnation for answer in answers.values()}
    if len(incarnations) < len(members):
        return Wait("founding: two members answered with one incarnation; is one directory a copy of another?")
    term = Term(max([stored_term, *(answer.term for answer in answers.values())]) + 1)
    listed = [Member(name=name, url=url, incarnation=answers[name].incarnation) for name, url in members.items()]
    level = min(answer.levels.max for answer in answers.values())
    return Found(term, GroupEntry(group=group, members=listed), level)


def listed_incarnation(group: GroupEntry | None, name: str) -> Incarnation | None:
    """Returns the incarnation that the group lists under ``name``."""
    if group is None:
        return None
    for member in group.members:
        if member.name == name:
            return Incarnation(parse_hex(member.incarnation))
    return None


def electable_incarnations(group: GroupEntry | None) -> list[Incarnation]:
    if group is None:
        return []
    return [Incarnation(parse_hex(member.incarnation)) for member in group.members if member.electable]


def further(own: tuple[int, int], answers: Mapping[NodeName, Answer]) -> NodeName | None:
    """Returns a member whose log's end (last term, last VLSN) is past ``own``, or None."""
    for name, answer in answers.items():
        if (answer.last_term, answer.last) > own:
            return name
    return None
