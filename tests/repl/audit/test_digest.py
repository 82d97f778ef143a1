"""Digests: equal for equal blocks however a log is cut, different for any other block."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl.audit.digest import (
    Checksums,
    RangeDigest,
    Share,
    block_digests,
    compared_bytes,
    differing,
    merged,
    shares_of,
    summed,
)
from vlsn.format.checksum import crc

Row = tuple[int, int, bytes]
"""First VLSN, count, payload."""


@st.composite
def logs(draw: st.DrawFn) -> list[Row]:
    """Blocks that follow on one another; some are larger than a leaf, or a range."""
    counts = draw(st.lists(st.sampled_from([1, 2, 3, 60, 64, 256, 300, 20_000, 65_536, 70_000]), max_size=40))
    first, rows = draw(st.sampled_from([1, 255, 65_530])), list[Row]()
    for count in counts:
        rows.append((first, count, b"%d %d" % (first, draw(st.integers(0, 1)))))
        first += count
    return rows


def shares(blocks: Sequence[Row], checksums: Checksums = Checksums.SHA256) -> list[Share]:
    payloads = [payload for _, _, payload in blocks]
    crcs = np.array([crc(payload) for payload in payloads], np.uint32)
    first, count = (np.array([row[column] for row in blocks], np.uint64) for column in (0, 1))
    return shares_of(first, count, block_digests(checksums, crcs, compared_bytes(checksums, payloads)))


def whole(blocks: Sequence[Row]) -> dict[int, RangeDigest]:
    """Makes the digest that ``docs/audit.md`` describes, from the blocks alone."""
    found = {}
    for at in {first >> 16 for first, _, _ in blocks}:
        mine = [row for row in blocks if row[0] >> 16 == at]
        leaves = sorted({first >> 9 for first, _, _ in mine})
        hashes = [
            sha256(b"".join(sha256(data).digest() for first, _, data in mine if first >> 9 == leaf)) for leaf in leaves
        ]
        digest = sha256(b"".join(each.digest() for each in hashes)).digest()
        found[at] = RangeDigest(at, sum(count for _, count, _ in mine), len(mine), digest)
    return found


@given(logs(), st.lists(st.integers(0, 40), max_size=6))
def test_range_digests_do_not_depend_on_how_a_log_is_cut(blocks: list[Row], cuts: list[int]) -> None:
    places = sorted({0, len(blocks), *(min(cut, len(blocks)) for cut in cuts)})
    pieces = [share for low, high in pairwise(places) for share in shares(blocks[low:high])]
    assert summed(pieces) == whole(blocks)


@given(logs(), st.lists(st.integers(0, 40), max_size=6))
def test_a_share_is_the_same_whatever_it_was_joined_of(blocks: list[Row], cuts: list[int]) -> None:
    """A later audit goes on from it, wherever segments begin and end by then."""
    blocks = [row for row in blocks if row[0] >> 16 == blocks[0][0] >> 16]
    places = sorted({0, len(blocks), *(min(cut, len(blocks)) for cut in cuts)})
    pieces = [share for low, high in pairwise(places) for share in shares(blocks[low:high])]
    assert list(merged(pieces).values()) == shares(blocks)


@pytest.mark.parametrize("checksums", Checksums)
@pytest.mark.parametrize("at", [0, 3, 7])
def test_one_other_block_changes_its_ranges_digest_alone(checksums: Checksums, at: int) -> None:
    blocks = [(1 + 10_000 * number, 10_000, b"payload %d" % number) for number in range(8)]
    changed = [(*row[:2], b"other") if number == at else row for number, row in enumerate(blocks)]
    one, two = (summed(shares(each, checksums)) for each in (blocks, changed))
    assert {key for key in one if one[key] != two[key]} == {blocks[at][0] >> 16}


def test_two_blocks_exchanged_differ() -> None:
    blocks = [(1, 1, b"a"), (2, 1, b"b")]
    exchanged = [(1, 1, b"b"), (2, 1, b"a")]
    assert summed(shares(blocks)) != summed(shares(exchanged))


def test_a_block_is_counted_in_the_range_of_its_first_vlsn() -> None:
    (low, high) = summed(shares([(65_535, 100, b"a"), (65_635, 2, b"b")])).values()
    assert (low.range, low.entries, low.blocks) == (0, 100, 1)
    assert (high.range, high.entries, high.blocks) == (1, 2, 1)


def test_a_segments_shares_are_small_however_many_blocks_it_has() -> None:
    blocks = [(number, 1, b"") for number in range(1, 300_000)]
    found = shares(blocks)
    assert [share.range for share in found] == [0, 1, 2, 3, 4]
    assert len(pickle.dumps(found)) < 2 * 512 * 32 + 5 * 128 * 32 + 1000
    assert summed(found) == whole(blocks)


def test_vlsns_that_go_back_over_a_range_are_another_digest() -> None:
    blocks = [(1 + 30_000 * number, 30_000, b"%d" % number) for number in range(8)]
    assert summed(shares(blocks) + shares(blocks[2:5]))[1] != summed(shares(blocks))[1]


def always(at: int) -> bool:
    return True


def test_differing_names_ranges_that_one_copy_lacks_or_has_otherwise() -> None:
    def of(at: int, digest: bytes) -> RangeDigest:
        return RangeDigest(at, 5, 1, digest)

    one = {0: of(0, b"7"), 1: of(1, b"8"), 2: of(2, b"9")}
    two = {0: of(0, b"7"), 1: of(1, b"9")}
    assert differing([one, two], [always, always]) == [1, 2]
    assert differing([one, dict(one)], [always, always]) == []
    assert differing([one, {}], [always, lambda at: False]) == []
    assert differing([one, two, {}], [lambda at: at != 1, lambda at: at < 2, lambda at: False]) == []
