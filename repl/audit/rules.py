"""The rules of the audit: their identifiers, and the order in which findings at one VLSN are listed.

The rules about the bytes of one directory are ``verify``'s rules (``Rule``), with the same names.
``docs/audit-rules.md`` explains each rule, its usual cause and the remedy.

    damage ─► order ─► rolled-back blocks ─► derived files ─► between copies ─► a client's history

The first finding at a VLSN explains the other findings there. For example, a damaged block also differs from the other
copies' block.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from vlsn.verify.inspection import Rule


class AuditRule(StrEnum):
    """The audit's rules that ``verify`` does not have."""

    CHANGED_PAST = "changed-past"
    """Blocks that an earlier audit had read have changed."""
    DIVERGENCE = "divergence"
    HISTORY_MISSING = "history-missing"
    HISTORY_DIFFERS = "history-differs"
    HISTORY_TWICE = "history-twice"
    HISTORY_REFUSED = "history-refused"
    HISTORY_READ = "history-read"
    """A reader has received an entry that a copy must have but does not have."""
    HISTORY_ORDER = "history-order"
    """One append was acknowledged before another was sent, but has the higher VLSN."""


DAMAGE: Final = (
    *(Rule.SEGMENT_HEADER, Rule.GAP, Rule.FRAME_HEADER, Rule.FRAME_CRC, Rule.BLOCK_HEADER),
    *(Rule.BLOCK_BODY, Rule.TRANSACTION, Rule.RECORD),
)
_ORDER: Final = (
    *DAMAGE,
    *(Rule.OVERMARK, Rule.CONTIGUITY, Rule.TERM_ORDER),
    *(Rule.OVERMARKED_DURABLE, Rule.DTVLSN, Rule.PRODUCER_SEQUENCE, Rule.SHORTER),
    *(Rule.SIDECAR, Rule.INDEX, Rule.STATE, Rule.NODE_FILE),
    *(Rule.NAME_REUSED, AuditRule.CHANGED_PAST, AuditRule.DIVERGENCE),
    *(AuditRule.HISTORY_MISSING, AuditRule.HISTORY_DIFFERS, AuditRule.HISTORY_READ, AuditRule.HISTORY_TWICE),
    *(AuditRule.HISTORY_REFUSED, AuditRule.HISTORY_ORDER),
)
RULES: Final = tuple(map(str, _ORDER))
"""Every identifier that a finding may have."""
RANKS: Final = {rule: max(0, rank - len(DAMAGE)) for rank, rule in enumerate(RULES)}
"""Findings with a lower rank come first. All kinds of damage have the same rank, so they are listed in the order of the
files."""

_NOT_HERE: Final = {Rule.UNREADABLE, Rule.PAGE}  # UNREADABLE ends an audit; only ``verify`` checks pages
assert sorted(RULES) == sorted({*Rule, *AuditRule} - _NOT_HERE)
