"""The ring against a plain list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vlsn.ids import Vlsn
from vlsn.write.ring import Ring

steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 5), st.integers(1, 40)),
        st.tuples(st.just("sync"), st.integers(0, 10), st.just(0)),
        st.tuples(st.just("cut"), st.integers(0, 3), st.just(0)),
    ),
    max_size=60,
)


@given(steps, st.integers(20, 200))
def test_positions_blocks_and_limits(steps: list[tuple[str, int, int]], bytes_max: int) -> None:
    ring = Ring(bytes_max)
    blocks: list[tuple[int, int, bytes]] = []  # first, last, content; position is the index
    last = synced = 0
    synced_count = 0
    dropped_positions = 0
    for what, number, size in steps:
        if what == "add":
            block = bytes([len(blocks) % 251]) * size
            blocks.append((last + 1, last + number, block))
            last += number
            ring.extend([block], [last])
        elif what == "sync":
            synced_count = min(len(blocks), max(synced_count, synced_count + number))
            synced = blocks[synced_count - 1][1] if synced_count else 0
            ring.set_synced(Vlsn(synced))
        else:
            keep = max(synced_count, len(blocks) - number)
            del blocks[keep:]
            last = blocks[-1][1] if blocks else 0
            ring.truncate(Vlsn(last))
        assert ring.end == len(blocks)
        assert ring.last_vlsn == last
        assert dropped_positions <= ring.head <= ring.synced_end == synced_count
        dropped_positions = ring.head
        kept = blocks[ring.head :]
        assert ring.bytes == sum(len(block) for _, _, block in kept)
        assert ring.bytes <= bytes_max or ring.head == ring.synced_end
        for position, (first, end, block) in enumerate(blocks):
            for vlsn in (first, end):
                expected = position if position >= ring.head else None
                assert ring.position_of(Vlsn(vlsn)) == expected
            if position >= ring.head:
                assert ring.take(position, end=position + 1, bytes_max=1) == [block]
                assert ring.last_at(position) == end
        assert ring.position_of(Vlsn(last + 1)) == ring.end
        assert ring.position_of(Vlsn(last + 2)) is None


def test_take_gives_one_block_at_least_and_stops_at_its_bytes() -> None:
    ring = Ring(1000)
    ring.extend([b"x" * 60, b"y" * 60, b"z" * 60], [1, 2, 3])
    assert ring.take(0, end=3, bytes_max=1) == [b"x" * 60]
    assert ring.take(0, end=3, bytes_max=120) == [b"x" * 60, b"y" * 60]
    assert ring.take(1, end=2, bytes_max=1000) == [b"y" * 60]


def test_a_block_that_is_not_synced_is_never_dropped() -> None:
    ring = Ring(10)
    ring.extend([b"x" * 60, b"y" * 60], [1, 2])
    assert (ring.head, ring.bytes) == (0, 120)
    ring.set_synced(Vlsn(1))
    assert (ring.head, ring.bytes) == (1, 60)
