"""Pages of a read: entries as a node answers them, and the place that the next page starts at."""

from __future__ import annotations

from dataclasses import dataclass

from vlsn.errors import BadBody
from vlsn.format import block
from vlsn.format.block import Entry
from vlsn.ids import padded


@dataclass(frozen=True, slots=True)
class Page:
    """Entries in rising VLSNs.  ``next_vlsn`` is where the next page starts, past what was not shown;
    ``durable`` the node's durable end when it answered; ``term`` that of the last block, 0 where there is none."""

    entries: list[Entry]
    next_vlsn: int
    durable: int
    term: int = 0


@dataclass(frozen=True, slots=True)
class VlsnPlace:
    """The next VLSN, ``None`` for the first there is, and the term of the one before it. 0 stands for a term that is
    not known."""

    vlsn: int | None
    term: int = 0

    def after(self, page: Page) -> VlsnPlace:
        stays = page.next_vlsn == self.vlsn
        return VlsnPlace(page.next_vlsn, page.term or (self.term if stays else 0))


def decode_blocks(body: memoryview, *, from_vlsn: int, kinds: frozenset[int] | None) -> tuple[list[Entry], int]:
    """Decodes the entries of whole blocks, each padded to 8 bytes, and the last block's term, 0 where there is none.
    Every checksum is checked. Raises ``BadBody``."""
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
