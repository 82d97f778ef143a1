"""A sidecar proves what a look at every frame finds, or nothing at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vlsn.builder import LogBuilder, Piece
from vlsn.format.block import EntryKind
from vlsn.format.segment import FIRST_FRAME
from vlsn.format.sidecar import Sidecar
from vlsn.verify import by_sidecar
from vlsn.verify.by_sidecar import inspect_sealed
from vlsn.verify.inspection import Inspected, inspect
from vlsnlog.testing.fakes.disk import FakeDisk

COLUMNS = ("offsets", "bad", "block_offsets", "firsts", "lasts", "terms", "dtvlsns", "marked", "lost")


def sealed(built: LogBuilder, piece: Piece, sidecar: Sidecar | None = None) -> Inspected | None:
    built.write()
    file = built.disk.open(f"{built.directory}/{piece.name}")
    sidecar = sidecar or built.sidecar(piece)
    return inspect_sealed(file, salt=piece.header.salt, end=piece.end, sidecar=sidecar)


def small(count: int) -> LogBuilder:
    built = LogBuilder(FakeDisk(), "/d").block(b"own", kind=EntryKind.TERM)
    return built.blocks(count).checkpoint().block(b"a", b"b", keys=[b"k", b""]).block(b"x" * 5_000).blocks(3)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 200), st.sampled_from([64, 700, 9_000, 1 << 20]))
def test_a_sidecar_proves_what_each_frame_says(count: int, window: int) -> None:
    built = small(count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_sidecar, "WINDOW_BYTES", window)
        found = sealed(built, built.piece)
    each = inspect(
        built.piece.data, size=built.piece.end, salt=built.piece.header.salt, end=built.piece.end, name="here"
    )
    assert found is not None
    assert not each.faults
    assert not found.faults
    for name in COLUMNS:
        assert np.array_equal(getattr(found, name), getattr(each, name)), name
    assert (found.records, found.end, found.torn, found.gaps) == (each.records, each.end, each.torn, each.gaps)
    assert (found.by_sidecar, each.by_sidecar) == (True, False)


@pytest.mark.parametrize("window", [64, 1 << 20])
def test_no_byte_may_differ_from_what_was_sealed(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_sidecar, "WINDOW_BYTES", window)
    built = small(2)
    piece = built.piece
    sidecar = built.sidecar(piece)
    assert sealed(built, piece, sidecar) is not None
    for at in [0, 100, FIRST_FRAME - 1, *range(FIRST_FRAME, FIRST_FRAME + 400), piece.end - 1]:
        piece.data[at] ^= 0x21
        assert sealed(built, piece, sidecar) is None, at
        piece.data[at] ^= 0x21


def test_what_a_right_checksum_does_not_excuse() -> None:
    built = small(5)
    piece = built.piece
    right = built.sidecar(piece)
    assert sealed(built, piece, replace(right, salt=right.salt ^ 1)) is None
    assert sealed(built, piece, replace(right, end=right.end - 8)) is None
    assert sealed(built, piece, replace(right, offsets=right.offsets[:-1])) is None
    assert sealed(built, piece, replace(right, offsets=np.delete(right.offsets, 2))) is None
    built.overmark(built.frames[1])
    assert sealed(built, piece) is None  # a sealed segment with marks keeps no sidecar
    ahead = small(1)
    ahead.piece.synced = ahead.piece.end + 1_000
    ahead.block(b"it claims more than it can know")
    assert sealed(ahead, ahead.piece) is None
