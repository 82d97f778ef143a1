"""The JSON messages between a restoring node and its provider. The bytes of segments are sent separately.

    look     restoring → any member    how loaded are you, and how far is your log durable?
    open     restoring → provider      I want the log from this VLSN on: hold it for me
    close    restoring → provider      I need nothing more
    record   any member → any member   I have lost my state: what do entries up to a VLSN in this span add up to?
    give-up  asked → every voter       a person asks me to give my copy of the log up: is yours whole?

Every request names the group, the requesting node with its incarnation, and the receiving node. Each request is
answered with an ``Offer``. The offer for an ``open`` contains the session, the state record as of the durable end, and
the segments from ``at`` on. The durable end of a session is fixed when the session is opened, and the restoring node
keeps nothing past that end. The offer for a ``record`` contains only the state record; the durable end in that offer is
the VLSN of the record.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from vlsn.errors import BadBody
from vlsn.format.feed_messages import Hex, Name, Number
from vlsn.format.json_messages import read_json, read_object
from vlsn.format.segment import NUMBER_MAX as SEGMENT_NUMBER_MAX
from vlsn.levels import Level
from vlsn.state.state_store import StateRecord

LOOK: Final = "look"
OPEN: Final = "open"
CLOSE: Final = "close"
RECORD: Final = "record"
GIVE_UP: Final = "give-up"
Purpose = Literal["look", "open", "close", "record", "give-up"]


class RestoreAsk(msgspec.Struct, frozen=True, kw_only=True):
    """A request. ``from_vlsn`` is the first VLSN wanted, or 0 for the first VLSN of the log. ``session`` is the session
    to close. A ``record`` request wants a state record of any VLSN from ``from_vlsn`` to ``upto``."""

    group: Name
    sender: Name
    incarnation: Hex
    to: Name
    purpose: Purpose
    from_vlsn: Number = 0
    upto: Number = 0
    session: str = ""


class OfferedSegment(msgspec.Struct, frozen=True, array_like=True):
    """A segment in an offer. ``end`` is the offset up to which the segment is synced."""

    number: Number
    end: Number


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request. ``restores`` counts the restores under way at this node, and ``feeders`` the feeders
    that it serves. With ``full``, this node accepts no more restores now. ``generation`` is a number of the log that
    changes with every rollback."""

    group: Name
    name: Name
    incarnation: Hex
    first: Number
    dtvlsn: Number
    dtvlsn_term: Number = 0
    """The term of the block at VLSN ``dtvlsn``; 0 if it is not stated."""
    restores: Number = 0
    feeders: Number = 0
    full: bool = False
    lacks_group: bool = False
    """True if the node has lost the GROUP entry that is in force, so that a log restored from this node would miss the
    entry, too."""
    lacks_producers: Number = 0
    """The VLSN up to which the node's tables miss entries (``History.lacks_to``)."""
    generation: Number = 0
    level: Level = 1
    """The level of the provider's log. A node with an older binary must restore from another member."""
    session: str = ""
    record: StateRecord | None = None
    at: Number = 0
    """The LSN of a frame at or before the first VLSN wanted; 0 if the log has no more blocks."""
    segments: list[OfferedSegment] = []
    """The segments in the answer to an ``open``, from ``at`` on, ascending."""


def read_ask(body: object) -> RestoreAsk:
    """Decodes a request. Raises ``BadBody``."""
    return read_object(body, RestoreAsk, "restore")


def read_offer(body: bytes) -> Offer:
    """Decodes an offer. Raises ``BadBody``."""
    offer = read_json(body, Offer, "no offer of a restore")
    numbers = [segment.number for segment in offer.segments]
    if numbers != sorted(set(numbers)) or (numbers and not 1 <= numbers[0] <= numbers[-1] <= SEGMENT_NUMBER_MAX):
        raise BadBody("an offer whose segments are not in order")
    if bool(offer.first) != bool(offer.dtvlsn) or offer.first > offer.dtvlsn:
        raise BadBody(f"an offer of VLSNs {offer.first} to {offer.dtvlsn}")
    if offer.session and offer.record is None:
        raise BadBody("an offer with a session but no state record")
    if not offer.session and (offer.at or offer.segments):
        raise BadBody("an offer with segments but no session")
    if offer.record is not None and offer.record.vlsn != offer.dtvlsn:
        raise BadBody(f"a state record of VLSN {offer.record.vlsn} with a log durable to {offer.dtvlsn}")
    if offer.record is not None:
        try:
            offer.record.check()
        except ValueError as error:
            raise BadBody(f"an offer of a restore: {error}") from None
    return offer
