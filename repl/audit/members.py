"""The members that vote from some VLSN on, as a GROUP entry lists them."""

from __future__ import annotations

from dataclasses import dataclass

from vlsn.format.records import GroupEntry


@dataclass(frozen=True, slots=True)
class GroupAt:
    """The members that vote from the GROUP entry at ``vlsn`` on."""

    vlsn: int
    voters: tuple[str, ...]
    urls: tuple[tuple[str, str], ...] = ()
    """The name and the URL of each member."""


def group_at(vlsn: int, entry: GroupEntry) -> GroupAt:
    voters = tuple(member.name for member in entry.members if member.electable)
    return GroupAt(vlsn, voters, tuple((member.name, member.url) for member in entry.members))
