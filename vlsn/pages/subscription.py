"""A destination as the pager uses it: which entries are its messages, and which of these messages are acknowledged.

    prefix b"order-", acknowledged 1–40, 50–52, 60        at the durable end
    messages that are still wanted:  41 … 49, 53 … 59, 61 …       if their keys begin with the prefix

The pager deletes acknowledged messages for good. So acknowledgements that may still be rolled back are not included.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlsn.format.vlsn_set import VlsnSet
from vlsn.ids import NULL_VLSN, Vlsn


@dataclass(frozen=True, slots=True)
class Subscription:
    """One destination at a node's durable end. ``MessageFilter`` says which entries are its messages. Messages before
    the destination's first VLSN are treated as acknowledged."""

    uuid: str
    """The identity of the destination, as 16 hex digits; no other destination ever has it. The destination's pages are
    in a directory that has the uuid as its name."""
    name: str
    prefix: bytes
    acknowledged: VlsnSet
    since: Vlsn = NULL_VLSN
    """The VLSN of the COMMIT that set the destination's first VLSN. Each move of the destination changes it."""
    letters: bytes = b""
    """The key of the destination's dead letters (reports of messages that no worker could process); empty if it has
    none."""
