"""Syncup on the replica's side: the replica describes its log, and checks that the blocks at the matchpoint are equal.

This module does no I/O. Master and replica compare two checksums over the whole block that ends at the matchpoint. Two
blocks with the same name (term and first VLSN) and different contents are an integrity fault, and no node overwrites
either copy.
"""

from __future__ import annotations

from zlib import crc32

from vlsn.errors import IntegrityFault
from vlsn.format.block import decode_header
from vlsn.format.checksum import crc
from vlsn.format.feed_messages import Matchpoint, Syncup, TermRun
from vlsn.index.range import VlsnRange
from vlsn.seams import Buffer


def describe(span: VlsnRange, stored_term: int, term_runs: list[TermRun]) -> Syncup:
    """Describes a replica's log for syncup. All blocks of the log must be synced, and they are, because the caller has
    waited for all writes."""
    assert span.last == span.last_sync
    return Syncup(
        first=span.first, last=span.last, last_sync=span.last_sync, stored_term=stored_term, term_runs=list(term_runs)
    )


def matchpoint_of(block: Buffer, *, feed_term: int) -> Matchpoint:
    """Makes the message about the matchpoint at the end of ``block``, with the block's checksums."""
    header = decode_header(block)
    return Matchpoint(
        vlsn=header.last_vlsn,
        feed_term=feed_term,
        term=header.term,
        block_first=header.first_vlsn,
        crc32c=crc(block),
        crc32=crc32(block),
    )


def compare(theirs: Matchpoint, block: Buffer) -> None:
    """Raises ``IntegrityFault`` unless ``block``, this node's block at the matchpoint, equals the master's byte for
    byte."""
    mine = matchpoint_of(block, feed_term=theirs.feed_term)
    if mine.vlsn != theirs.vlsn:
        raise IntegrityFault(
            f"VLSN {theirs.vlsn} ends a block at the master, but is inside block {mine.block_first}–{mine.vlsn} here",
            vlsn=theirs.vlsn,
        )
    if mine != theirs:
        raise IntegrityFault(
            f"two blocks ({theirs.term}, {theirs.block_first}) and ({mine.term}, {mine.block_first}) end at VLSN "
            f"{theirs.vlsn}: crc32c {theirs.crc32c:08x} there, {mine.crc32c:08x} here",
            vlsn=theirs.vlsn,
        )
