"""A destination as its pager uses it: which entries are its messages, and which of these are acknowledged.

    prefix b"order-", acknowledged 1–40, 50–52, 60        at the durable end
    messages that are still wanted:  41 … 49, 53 … 59, 61 …       if their keys begin with the prefix

Acknowledgements that may still be rolled back are not included, because the pager deletes acknowledged messages for
good.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlsn.format.vlsn_set import VlsnSet
from vlsn.ids import NULL_VLSN, Vlsn


@dataclass(frozen=True, slots=True)
class Subscription:
    """One destination at a node's durable end. ``MessageFilter`` says which entries are its messages. Messages before
    its first one count as acknowledged."""

    uuid: str
    """16 hex digits, never those of another destination. Its pages are in a directory of this name."""
    name: str
    prefix: bytes
    acknowledged: VlsnSet
    since: Vlsn = NULL_VLSN
    """The VLSN of the COMMIT that set where the destination begins; it changes with each move."""
    letters: bytes = b""
    """The key of the destination's dead letters; empty if it has none."""
