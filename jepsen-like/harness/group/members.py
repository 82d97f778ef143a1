"""The members in a master's list, and one change of them.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Listed:
    """The members in a master's durable list."""

    term: int
    vlsn: int
    members: Mapping[str, str]
    """Incarnations by name."""
    electable: frozenset[str]
    joining: frozenset[str]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Listed:
        """Reads the list out of ``GET /v1/group``."""
        members = document["members"]
        return cls(
            document["term"],
            document["vlsn"],
            {each["name"]: each["incarnation"] for each in members},
            frozenset(each["name"] for each in members if each["electable"]),
            frozenset(each["name"] for each in members if each["joining"]),
        )


@dataclass(frozen=True, slots=True)
class Step:
    """One change.  ``change`` is the request to a master; for ``readmit`` the node is wiped, and no one is asked."""

    change: str
    name: str
    secondary: bool = False
    fresh: bool = False
    """True if the node's former data is removed."""

    def body(self, url: str) -> dict[str, Any]:
        """Makes the body of ``POST /v1/admin/group``."""
        if self.change == "add":
            return {"change": "add", "name": self.name, "url": url, "secondary": self.secondary}
        return {"change": self.change, "name": self.name}

    def done(self, before: Listed, now: Listed) -> bool:
        match self.change:
            case "add":
                return self.name in now.members
            case "remove":
                return self.name not in now.members
            case "promote":
                return self.name in now.electable | now.joining
            case _:
                return now.members.get(self.name) not in (None, before.members.get(self.name))

    def __str__(self) -> str:
        words = "add" * (self.change == "add" and not self.secondary) or self.change
        if self.change == "add" and self.secondary:
            words = "add, secondary,"
        return f"{words} {self.name}{', wiped' if self.fresh else ''}"
