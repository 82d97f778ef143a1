"""Pages of a read. A page has the entries of one answer, and the place where the next page starts."""

from __future__ import annotations

from dataclasses import dataclass

from vlsn.errors import BadBody
from vlsn.format import block
from vlsn.format.block import Entry
from vlsn.format.frame import padded


@dataclass(frozen=True, slots=True)
class Page:
    """Entries in ascending order of VLSN. ``next_vlsn`` is the VLSN at which the next page starts: entries before it
    that are missing here were filtered out. ``durable`` is the node's durable end when it answered. ``term`` is the
    term of the last block, or 0 if there is none."""

    entries: list[Entry]
    next_vlsn: int
    durable: int
    term: int = 0


@dataclass(frozen=True, slots=True)
class VlsnPlace:
    """A place in the log: the next VLSN (``None`` for the log's first) and the term of the VLSN before it. The term 0
    means that the term is not known."""

    vlsn: int | None
    term: int = 0

    def after(self, page: Page) -> VlsnPlace:
        stays = page.next_vlsn == self.vlsn
        return VlsnPlace(page.next_vlsn, page.term or (self.term if stays else 0))


def decode_blocks(body: memoryview, *, from_vlsn: int, kinds: frozenset[int] | None) -> tuple[list[Entry], int]:
    """Decodes the entries of whole blocks, each padded to a multiple of 8 bytes. Also returns the last block's term, or
    0 if there is no block. Checks every checksum. Raises ``BadBody``."""
    found: list[Entry] = []
    at = term = 0
    while at < len(body):
        header = block.decode_header(body, at)
        whole = body[at : at + header.size]
        if len(whole) < header.size:
            raise BadBody(f"the block of VLSN {header.first_vlsn} is cut short")
        block.check_body(whole, header)
        found += block.entries(whole, header, from_vlsn=from_vlsn, kinds=kinds)
        at += padded(header.size)
        term = header.term
    return found, term
