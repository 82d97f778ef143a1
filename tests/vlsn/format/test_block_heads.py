"""The rule of a block's header, which is written for one and for many: held against each other."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from vlsn.errors import VlsnLogError
from vlsn.format import block
from vlsn.format.block import BLOCK, BLOCK_BYTES, KIND_COLUMN, EntryKind, decode_header
from vlsn.format.block_heads import BLOCK_DTYPE, heads_good
from vlsn.format.block_run import run_of
from vlsn.format.checksum import crc
from vlsn.format.columns import columns_of, layout
from vlsn.ids import NUMBER_MAX, U64_MAX
from vlsn.limits import BATCH_ENTRIES_MAX, BODY_BYTES_MAX

HEADERS = 100_000
NUMBERS = (
    0,
    1,
    2,
    7,
    NUMBER_MAX - BATCH_ENTRIES_MAX,
    NUMBER_MAX - 3,
    NUMBER_MAX - 1,
    NUMBER_MAX,
    NUMBER_MAX + 1,
    U64_MAX,
)
COUNTS = (0, 1, 2, 3, 64, 65, BATCH_ENTRIES_MAX, BATCH_ENTRIES_MAX + 1, 0xFFFF_FFFF)
SIZES = (0, 0, 1, 7, 8, 100, BODY_BYTES_MAX - 100, BODY_BYTES_MAX, 0xFFFF_FFFF)
KINDS = (0, 0, 0, 1, 2, max(EntryKind), max(EntryKind) + 1, 254, KIND_COLUMN)  # fmt: skip


def drawn(rng: Random) -> bytes:
    """Draws a header, right but for a field or two at the edges; lengths and crc fit."""

    def maybe(right: int, *others: int) -> int:
        return rng.choice(others) if rng.random() < 0.12 else right

    flags = maybe(rng.choice((0, 0, 1, 2, 4, 8, 15)), 16, 128, rng.randrange(256))
    kind = maybe(KIND_COLUMN if flags & 1 else rng.choice(tuple(EntryKind)), *KINDS)
    count = maybe(rng.choice((1, 2, 3, 64, 65, BATCH_ENTRIES_MAX)), *COUNTS)
    first = maybe(rng.randrange(2, 1000), *NUMBERS)
    submissions = maybe(min(count, rng.choice((1, 1, 2, 3))), *COUNTS, count + 1) & 0xFFFF_FFFF
    key_bytes = maybe(rng.choice(SIZES[2:6]) if flags & 8 else 0, *SIZES)
    value_bytes = maybe(rng.choice(SIZES[:6]), *SIZES)
    body_bytes = layout(flags & 15, count, key_bytes, value_bytes, submissions).end - BLOCK_BYTES
    dtvlsn, clock_us = maybe(first - 1, *NUMBERS) % (1 << 64), maybe(5, *NUMBERS)
    size = maybe(body_bytes, *SIZES, body_bytes + 8) & 0xFFFF_FFFF
    term, zero, version = maybe(3, *NUMBERS), maybe(0, 1), maybe(1, 0, 2, 255)
    numbers = term, first, dtvlsn, clock_us, submissions, key_bytes, value_bytes, size
    fields = version, flags, kind, zero, count, *numbers, 9
    head = BLOCK.pack(*fields, 0)[:-4]
    return head + crc(head).to_bytes(4, "little")


def taken(head: bytes) -> bool:
    try:
        decode_header(head)
    except VlsnLogError:
        return False
    return True


@pytest.mark.parametrize("seed", range(3))
def test_many_headers_are_judged_as_each_of_them(seed: int) -> None:
    rng = Random(seed)
    heads = [drawn(rng) for _ in range(HEADERS)]
    one_by_one = np.array([taken(head) for head in heads])
    at_once = heads_good(np.frombuffer(b"".join(heads), BLOCK_DTYPE))
    differing = np.flatnonzero(one_by_one != at_once)
    assert not len(differing), [BLOCK.unpack(heads[index]) for index in differing[:3]]
    assert 0.2 < one_by_one.mean() < 0.8, "both sides of the rule are met"


def refused(blocks: list[bytes], first: int) -> bool:
    starts, at = [], 0
    for one in blocks:
        starts.append(at)
        at += len(one)
    try:
        run_of(b"".join(blocks), starts, [len(one) for one in blocks], expected_first=first, term_min=1, term_max=9)
    except VlsnLogError:
        return True
    return False


@pytest.mark.parametrize("seed", range(3))
def test_a_run_of_many_blocks_takes_what_a_run_of_few_takes(seed: int) -> None:
    """A header that says other things, its crc right, as a peer may send it."""
    rng = Random(seed)
    columns = columns_of([b"a", b"bc"], [b"k", b""])
    right = [
        block.build(term=3, first_vlsn=at, dtvlsn=0, clock_us=1, kind=0, columns=columns, submissions=1)
        for at in range(11, 51, 2)
    ]
    assert not refused(right, 11) and not refused(right[:4], 11)
    seen = {True: 0, False: 0}
    for _ in range(5000):
        at = rng.randrange(15)
        head = bytearray(right[at][:BLOCK_BYTES])
        place = rng.randrange(BLOCK_BYTES - 4)
        head[place] = rng.choice((0, 1, 2, 4, 8, 127, 128, 255, head[place] ^ 1))
        head[-4:] = crc(bytes(head[:-4])).to_bytes(4, "little")
        changed = [*right[:at], bytes(head) + right[at][BLOCK_BYTES:], *right[at + 1 :]]
        few = refused(changed[:16], 11)
        assert refused(changed, 11) == few, BLOCK.unpack(bytes(head))
        seen[few] += 1
    assert min(seen.values()) > 100
    longer = [right[0] + bytes(8), *right[1:]]
    body = longer[0][BLOCK_BYTES:]
    fields = list(BLOCK.unpack(right[0][:BLOCK_BYTES]))
    fields[-2] = crc(body)
    head = bytearray(BLOCK.pack(*fields))
    head[-4:] = crc(bytes(head[:-4])).to_bytes(4, "little")
    longer[0] = bytes(head) + body
    assert refused(longer, 11) and refused(longer[:4], 11), "bytes behind the body, which its crc covers"
