"""A destination as its pager sees it: the entries that are its messages, and the acknowledged ones among them.

    prefix b"order-", acknowledged 1–40, 50–52, 60        as of the durable end
    messages that are still wanted:  41 … 49, 53 … 59, 61 …       with a key that begins so

An acknowledgement that may still be rolled back does not count: the pager deletes acknowledged messages for good.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlsn.format.vlsn_set import VlsnSet
from vlsn.ids import NULL_VLSN, Vlsn


@dataclass(frozen=True, slots=True)
class Subscription:
    """One destination as of a node's durable end.  ``MessageFilter`` says which entries are its messages; those before
    its first one count as acknowledged."""

    uuid: str
    """16 hex digits, never of another destination: its pages lie under it."""
    name: str
    prefix: bytes
    acknowledged: VlsnSet
    since: Vlsn = NULL_VLSN
    """The VLSN of the COMMIT that has set where it begins: another one after each move."""
    letters: bytes = b""
    """The key of its dead letters; empty: it has none."""
