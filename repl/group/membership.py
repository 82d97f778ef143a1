"""Membership: the changes of a group, and the members that count before a change is durable.

    log      … GROUP at 2 {n1 a, n2 b, n3 c} …… GROUP at 90 {n1 a, n2 b, n3 c'} ……
    counts   up to 90: a b c        from 90 on, until it is durable: a and b, of 3        then: a b c'

A GROUP entry in the log lists all members. An incarnation (a, b, c above) identifies a node's store.

1. A GROUP entry counts while it is in the log, and stops counting when it is rolled back. Consecutive entries differ by
   one electable member, so that majorities of both overlap (Raft's dissertation, §4.1). A GROUP entry is appended only
   in a term whose first block is durable, and only after a durable GROUP entry. (Without this condition, the algorithm
   as first printed in that section was wrong.)
2. A change of a name's incarnation is two changes at once: one voter leaves, another joins. Majorities of the two lists
   need not overlap (b c of the old list, a c' of the new one, if the disk of c comes back). Until a GROUP entry with a
   changed incarnation is durable, the changed member only counts in the size of the group. So a majority consists of
   nodes that are in both lists, and the wiped node cannot admit itself with its own acknowledgement.
3. A node that is not listed may be fed, but its votes and acknowledgements do not count.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from feeder.majority import majority
from vlsn.errors import BadArgument, BadBody, GroupBusy, InsufficientReplicas
from vlsn.format.feed_messages import Name
from vlsn.format.records import PRIORITY_MAX, GroupEntry, Member
from vlsn.ids import Incarnation, Vlsn
from vlsn.levels import HTTPS_URLS

NOBODY = f"{0:016x}"
"""An incarnation that belongs to no node, because no node draws 0."""
Priority = Annotated[int, Meta(ge=0, le=PRIORITY_MAX)]


class Add(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="change", tag="add"):
    """A request to add ``name``, which becomes electable once it has caught up, unless ``secondary``."""

    name: Name
    url: str
    secondary: bool = False
    priority: Priority = 1


class Remove(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="change", tag="remove"):
    name: Name


class Promote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="change", tag="promote"):
    """A request to make a secondary member electable, once it has caught up."""

    name: Name


class Prefer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="change", tag="priority"):
    name: Name
    priority: Priority


class Move(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="change", tag="move"):
    """A request to set a new URL for a member."""

    name: Name
    url: str


Change = Add | Remove | Promote | Prefer | Move
"""A change that a user requests: the body of ``POST /v1/admin/group``."""


def read_change(body: object) -> Change:
    """Decodes a change of the group. Raises ``BadBody``."""
    try:
        change: Change = msgspec.convert(body, Change)
    except msgspec.ValidationError as error:
        raise BadBody(f"a change of the group: {error}") from None
    return change


# The next GROUP entry. The caller that appends the entry sets its field ``previous``.


def with_member(group: GroupEntry, add: Add, incarnation: str) -> GroupEntry:
    """Adds ``add.name`` to the members as a secondary. Raises ``BadArgument``."""
    url = add.url.rstrip("/")
    for member in group.members:
        if member.name == add.name:
            raise BadArgument(f"{add.name} is a member already, at {member.url}")
        if member.url == url:
            raise BadArgument(f"{url} is the member {member.name}; each has its own URL")
        if member.incarnation == incarnation:
            raise BadArgument(f"the node at {url} is {member.name} itself; is one directory a copy of another?")
    joined = Member(
        name=add.name,
        url=url,
        incarnation=incarnation,
        electable=False,
        priority=add.priority,
        joining=not add.secondary,
    )
    return _checked(replace(group, members=[*group.members, joined]))


def with_url(group: GroupEntry, move: Move, incarnation: str) -> GroupEntry:
    """Sets another URL for ``move.name``. The node with ``incarnation`` has answered at that URL. Returns an equal
    group if the member has that URL already. Raises ``BadArgument``."""
    url = move.url.rstrip("/")
    moved = member_of(group, move.name)
    if moved.incarnation != incarnation:
        raise BadArgument(
            f"the node at {url} has incarnation {incarnation}, and the group lists {moved.incarnation} as {move.name}: "
            "it is another store"
        )
    for member in group.members:
        if member.url == url and member is not moved:
            raise BadArgument(f"{url} is the member {member.name}; each has its own URL")
    return _checked(_with(group, move.name, url=url))


def check_level(change: Change, level: int) -> None:
    """Checks that the URL of a change fits the group's level: members of an older level refuse ``https`` URLs. Raises
    ``BadArgument``."""
    if isinstance(change, Add | Move) and change.url.startswith("https:") and level < HTTPS_URLS:
        raise BadArgument(
            f"https URLs need level {HTTPS_URLS}, and the group has level {level}: `vlsnlog group upgrade` raises it"
        )


def without_member(group: GroupEntry, name: str) -> GroupEntry:
    """Removes a member. Raises ``BadArgument``, also for the last electable member."""
    gone = member_of(group, name)
    left = [member for member in group.members if member is not gone]
    if not any(member.electable for member in left):
        raise BadArgument(f"{name} is the last electable member: no node would be left to lead")
    return replace(group, members=left)


def with_electable(group: GroupEntry, name: str, *, caught_up: bool) -> GroupEntry:
    """Makes a secondary electable, or marks it as joining until it has caught up. Raises ``BadArgument``."""
    if member_of(group, name).electable:
        raise BadArgument(f"{name} is electable already")
    return _with(group, name, electable=caught_up, joining=not caught_up)


def with_priority(group: GroupEntry, name: str, priority: int) -> GroupEntry:
    return _with(group, name, priority=priority)


def with_incarnation(group: GroupEntry, name: str, incarnation: Incarnation) -> GroupEntry:
    """Sets another incarnation (store) for a member's name."""
    return _with(group, name, incarnation=f"{incarnation:016x}")


def member_of(group: GroupEntry, name: str) -> Member:
    """Returns the member with this name. Raises ``BadArgument``."""
    for member in group.members:
        if member.name == name:
            return member
    raise BadArgument(f"the group has no member {name}; it has {', '.join(each.name for each in group.members)}")


def _with(group: GroupEntry, name: str, **fields: object) -> GroupEntry:
    changed = member_of(group, name)
    return replace(group, members=[replace(each, **fields) if each is changed else each for each in group.members])


def _checked(group: GroupEntry) -> GroupEntry:
    try:
        return GroupEntry.decode(group.encode())
    except BadBody as error:
        raise BadArgument(str(error)) from None


# Counted members.


def counting(groups: Sequence[tuple[Vlsn, GroupEntry]], dtvlsn: int) -> GroupEntry | None:
    """Returns the group whose members count for votes and acknowledgements. The newest group is returned, but without a
    member whose changed incarnation may be rolled back. ``groups`` has the last durable GROUP entry and all later ones,
    as in ``History``."""
    if not groups:
        return None
    at, newest = groups[-1]
    if at <= dtvlsn or len(groups) < 2:
        return newest
    before = {member.name: member.incarnation for member in groups[-2][1].members}
    return replace(
        newest,
        members=[
            replace(member, incarnation=NOBODY)
            if before.get(member.name, member.incarnation) != member.incarnation
            else member
            for member in newest.members
        ],
    )


def leaving(groups: Sequence[tuple[Vlsn, GroupEntry]], dtvlsn: int, name: str, incarnation: int) -> bool:
    """Returns whether a member is leaving: the newest list no longer has it but may be rolled back, and the list before
    has it as electable."""
    if len(groups) < 2 or groups[-1][0] <= dtvlsn or any(member.name == name for member in groups[-1][1].members):
        return False
    own = name, f"{incarnation:016x}"
    return any((each.name, each.incarnation) == own and each.electable for each in groups[-2][1].members)


def check_change(
    groups: Sequence[tuple[Vlsn, GroupEntry]],
    proposed: GroupEntry,
    *,
    durable: Vlsn,
    term_start: Vlsn,
    live: frozenset[Incarnation],
) -> None:
    """Checks whether the master may append ``proposed`` now. ``durable`` is the VLSN that the acknowledgements of this
    term prove to be durable. ``live`` are the incarnations that are fed and answer, the master's own included. Raises
    ``GroupBusy``, ``InsufficientReplicas``."""
    at, _ = groups[-1]
    if not term_start or durable < term_start:
        raise GroupBusy("the first block of this master's term is not durable yet; try again")
    if durable < at:
        raise GroupBusy(f"the change of the group at VLSN {at} is not durable yet; one at a time")
    after = counting([groups[-1], (Vlsn(durable + 1), proposed)], durable)
    assert after is not None
    electable = [int(member.incarnation, 16) for member in after.members if member.electable]
    there = sum(incarnation in live for incarnation in electable)
    if there < majority(len(electable)):
        raise InsufficientReplicas(
            f"only {there} of the {len(electable)} electable members that would count are connected: the change could "
            "not become durable"
        )


def listed_as(group: GroupEntry, name: str, incarnation: int) -> Member | None:
    """Returns the member with this name, if the group lists ``incarnation`` for it; otherwise None."""
    for member in group.members:
        if member.name == name:
            return member if int(member.incarnation, 16) == incarnation else None
    return None


def is_listed(group: GroupEntry, name: str) -> bool:
    return any(member.name == name for member in group.members)
