"""The index's benchmark builds what a node would, and its figures are of that."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.bench.index import FIRST_FRAME, FRAME_BYTES, build, measure
from tests.vlsn.index import inspect
from vlsn.ids import Vlsn, lsn
from vlsn.index.index import VlsnIndex
from vlsn.limits import SEGMENT_BYTES
from vlsn.real.lmdb_store import LmdbStores

VLSNS = 700_000


def test_the_index_that_is_measured_is_true_and_sparse(tmp_path: Path) -> None:
    path = str(tmp_path / "index")
    assert build(path, VLSNS) > 0
    index = VlsnIndex(LmdbStores().open(path, map_bytes=1 << 26), nullcontext())
    assert index.load() == 3
    inspect.verify(index)
    blocks = (SEGMENT_BYTES - FIRST_FRAME) // FRAME_BYTES
    for vlsn in (1, 2, blocks, blocks + 1, VLSNS // 2, VLSNS):
        found = index.at_or_before(Vlsn(vlsn))
        assert found is not None
        number, place = divmod(found[0] - 1, blocks)
        assert found[1] == lsn(1 + number, FIRST_FRAME + place * FRAME_BYTES)
        assert 0 <= vlsn - found[0] <= 4096 // FRAME_BYTES + 1
    index.close()
    figures = measure(path, 200)
    assert figures["mappings"] == pytest.approx(VLSNS / 21, rel=0.01)
    assert figures["buckets"] >= figures["mappings"] // 1000
    assert 0 < figures["raw_us"] < figures["lookup_us"]
    assert 0 < figures["rss_anon_opened"] <= figures["rss_anon"]
