"""The base of a node's answers to its gateway: the member that answers, and whether it is the master."""

from __future__ import annotations

from repl.group.member import Member


class Service:
    """One kind of call. It lasts as long as the node, and finds what needs the open log anew in each call."""

    def __init__(self, member: Member) -> None:
        self.member = member

    @property
    def name(self) -> str:
        return self.member.config.name

    @property
    def group(self) -> str:
        return self.member.config.group

    def is_master(self) -> bool:
        return self.member.is_master()

    def master_url(self) -> str | None:
        return self.member.master_url()
