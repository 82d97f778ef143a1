"""Tokens of clients, made what a COMMIT sets; durable when answered. ``repl/auth/tokens.py`` says what they are.

    made      COMMIT {token/ID: record} where no such name is set ─► durable; the same call again is answered alike
    rotated   COMMIT {token/NEW: record, token/ID: the same, with an end} ─► durable: both work until that end
    revoked   COMMIT {token/ID: null} ─► durable

A revoked token works on no node whose log has the COMMIT, durable or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from repl.api import Puts
from repl.auth.tokens import TokenRecord, check_level, key_of, record_of, records_in
from repl.group.member import Member
from repl.names.commits import CommitLead, commit_alone
from vlsn.errors import BadArgument, NotFound, OutcomeUnknown, ProducersMissing
from vlsn.state.small_state import SmallState

KEPT_US: Final = 86_400_000_000
"""How long an expired token stays in the table, µs. Whoever makes another token then removes it."""
OVERLAP_S_MAX: Final = 30 * 86_400.0


class NodeTokens:
    """The tokens of a node's group. ``leads`` returns the lead, or raises ``NotMaster``."""

    def __init__(self, member: Member, leads: Callable[[], CommitLead]) -> None:
        self.member = member
        self._leads = leads

    def tokens(self) -> dict[str, TokenRecord]:
        """Lists all tokens in this node's log, durable or not. Raises ``NotMaster`` while it is not open, and
        ``ProducersMissing`` while the node has lost some of them."""
        return records_in(_whole(self.member.opened().log.view.history.small))

    async def create(self, id: str, record: TokenRecord, timeout_s: float) -> None:
        """Makes a token, durable on return. Raises ``BadArgument`` for a bad record or an ID that another token has,
        ``TooLarge`` past the limits, ``WrongVersion``, and what an append meets."""
        lead, key = self._leads(), key_of(id)
        record.check()
        deadline = asyncio.get_running_loop().time() + timeout_s
        small = _whole(lead.log.view.history.small)
        if await self._is_made(lead, id, record, deadline):
            return
        check_level(lead.log.view.level)
        values = dict.fromkeys(self._outlived(small))
        await commit_alone(lead, Puts({**values, key: msgspec.json.encode(record)}, {key: 0}), deadline)
        self.member.event("token.created", id=id, roles=",".join(record.roles), by=record.by)

    async def rotate(self, id: str, new_id: str, sha256: str, overlap_s: float, by: str, timeout_s: float) -> None:
        """Makes a successor of token ``id``, with the same rights and end. The old one ends after ``overlap_s``.
        Durable on return. Raises ``NotFound``, and as ``create``."""
        lead, key, new_key = self._leads(), key_of(id), key_of(new_id)
        deadline = asyncio.get_running_loop().time() + timeout_s
        kept = _whole(lead.log.view.history.small).get(key)
        record = record_of(kept)
        if kept is None or record is None:
            raise NotFound(f"there is no token {id}")
        if record.uri:
            raise BadArgument(f"token {id} has no secret: the certificate of {record.uri} is its proof")
        successor = replace(record, sha256=sha256, by=by)
        successor.check()
        if await self._is_made(lead, new_id, successor, deadline, other_than="expires_us"):
            return
        check_level(lead.log.view.level)
        end = self.member.seams.clock.wall_us() + round(overlap_s * 1e6)
        before = replace(record, expires_us=min(end, record.expires_us or end))
        values = {key: msgspec.json.encode(before), new_key: msgspec.json.encode(successor)}
        await commit_alone(lead, Puts(values, {key: kept.vlsn, new_key: 0}), deadline)
        self.member.event("token.rotated", id=id, to=new_id, overlap_s=overlap_s, by=by)

    async def revoke(self, id: str, by: str, timeout_s: float) -> None:
        """Removes a token, durable on return. Raises ``NotFound``, and what an append meets."""
        lead, key = self._leads(), key_of(id)
        if key not in _whole(lead.log.view.history.small):
            raise NotFound(f"there is no token {id}")
        await commit_alone(lead, Puts({key: None}), asyncio.get_running_loop().time() + timeout_s)
        self.member.event("token.revoked", id=id, by=by)

    async def _is_made(
        self, lead: CommitLead, id: str, record: TokenRecord, deadline: float, *, other_than: str = ""
    ) -> bool:
        """Says whether this very token is there, as if the call was made before, and waits until it is durable. Raises
        ``BadArgument`` if another one has its ID."""
        kept = lead.log.view.history.small.get(key_of(id))
        if kept is None:
            return False
        there = record_of(kept)
        if there is not None and other_than:
            there = replace(there, **{other_than: getattr(record, other_than)})
        if there != record:
            raise BadArgument(f"{id} is the ID of another token")
        if not await lead.reads.reached(kept.vlsn, deadline):
            raise OutcomeUnknown(f"token {id} is logged at VLSN {kept.vlsn}, and not durable yet")
        return True

    def _outlived(self, small: SmallState) -> list[str]:
        before = self.member.seams.clock.wall_us() - KEPT_US
        return [key_of(id) for id, record in records_in(small).items() if record.expired(before)]


def _whole(small: SmallState) -> SmallState:
    if small.lacks_to:
        raise ProducersMissing(
            f"this node has lost what was set up to VLSN {small.lacks_to}, and asks the other members; try again"
        )
    return small
