"""The index that a task reads: the mappings of its segments, and no bucket of others."""

from __future__ import annotations

import pytest

from repl.audit.directory import DirectorySource
from tests.repl.audit.life import Left
from vlsn.real.lmdb_store import LmdbStores
from vlsn.verify.index_mappings import read_mappings


@pytest.fixture
def sources(left: Left) -> list[DirectorySource]:
    return [DirectorySource(str(path), str(path)) for path in left.paths.values()]


def test_each_run_of_segments_gets_its_own_mappings(sources: list[DirectorySource]) -> None:
    checked = 0
    for source in sources:
        whole = read_mappings(LmdbStores(), source.path)
        parts = source.survey(0).parts
        assert {part.number for part in parts if part.buckets[1]} == set(whole.by_segment)
        for low in range(len(parts)):
            for high in range(low + 1, len(parts) + 1):
                found = source.indexed(parts[low:high])
                assert set(found) == set(whole.by_segment) & {part.number for part in parts[low:high]}
                for number, indexed in found.items():
                    vlsns, offsets = whole.by_segment[number]
                    assert indexed.vlsns.tolist() == vlsns.tolist()
                    assert indexed.offsets.tolist() == offsets.tolist()
                    checked += 1
    assert checked > 6


def test_a_segment_needs_no_bucket_of_others(sources: list[DirectorySource]) -> None:
    """The tasks of an audit read one index together, however many they are."""
    for source in sources:
        whole = sum(len(vlsns) for vlsns, _ in read_mappings(LmdbStores(), source.path).by_segment.values())
        parts = [part for part in source.survey(0).parts if part.buckets[1]]
        read = [source.mappings(*part.buckets).by_segment for part in parts]
        assert [set(each) for each in read] == [{part.number} for part in parts]
        assert sum(len(vlsns) for each in read for vlsns, _ in each.values()) == whole
