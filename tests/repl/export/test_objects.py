"""The commit protocol on an object store, fsspec's own in memory: a store that creates, copies, and locks nothing."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest

from repl.export.commit import Committer
from repl.export.manifest import BadTarget, DataFile, Fenced, Mark, Settings
from repl.export.objects import ObjectTarget, Target, target_of

SETTINGS = Settings("g", "parquet", "date", "", "")
MARK = Mark(1, 2, 3)
URL = "memory://bucket/lake"


@pytest.fixture
def store() -> Iterator[Any]:
    made = fsspec.filesystem("memory")
    made.store.clear()
    made.pseudo_dirs[:] = [""]
    yield made
    made.store.clear()
    made.pseudo_dirs[:] = [""]


def staged(target: Target, exporter: str, first: int, last: int) -> list[DataFile]:
    files = []
    for vlsn in range(first, last + 1):
        name = target.staged_name("date=d", exporter, f"{exporter}{vlsn}")
        file = target.new_file(name)
        file.write(b"row ")
        file.write(b"%d" % vlsn)
        file.close()
        size = len(b"row %d" % vlsn)
        files.append(DataFile(f"date=d/{vlsn:020}-{vlsn:020}.parquet", name, vlsn, vlsn, 1, size, 0))
    return files


def rows(store: Any) -> list[bytes]:
    return [store.cat(path) for path in sorted(store.find("/bucket/lake")) if path.endswith(".parquet")]


def test_batches_are_put_in_place_and_gone_on_with(store: Any) -> None:
    for exporter, first in (("a", 1), ("b", 4)):
        target = target_of(URL)
        committer = Committer(target, exporter, lambda: 7)
        committer.open()
        committer.claim(SETTINGS, 1)
        committer.commit(first, first + 2, MARK, staged(target, exporter, first, first + 2))
    assert rows(store) == [b"row %d" % vlsn for vlsn in range(1, 7)]
    assert store.find("/bucket/lake/_staged") == []
    assert len(store.ls("/bucket/lake/_manifests")) == 4


def test_the_older_of_two_exports_commits_nothing_more(store: Any) -> None:
    target = target_of(URL)
    first, second = Committer(target, "a", lambda: 7), Committer(target_of(URL), "b", lambda: 7)
    first.open()
    first.claim(SETTINGS, 1)
    files = staged(target, "a", 1, 3)
    second.open()
    second.claim(SETTINGS, 1)
    assert store.find("/bucket/lake/_staged") == []
    with pytest.raises(Fenced, match="export b has taken over"):
        first.commit(1, 3, MARK, files)
    second.commit(1, 2, MARK, staged(target, "b", 1, 2))
    assert rows(store) == [b"row 1", b"row 2"]


def test_what_was_committed_is_put_in_place_by_the_next_start(store: Any) -> None:
    class Stopped(Exception):
        pass

    class StopsAtTheSecond(ObjectTarget):
        def publish(self, staged: str, name: str) -> None:
            if rows(self.store):
                raise Stopped
            super().publish(staged, name)

    target = StopsAtTheSecond(URL)
    committer = Committer(target, "a", lambda: 7)
    committer.open()
    committer.claim(SETTINGS, 1)
    with pytest.raises(Stopped):
        committer.commit(1, 3, MARK, staged(target, "a", 1, 3))
    assert rows(store) == [b"row 1"]
    held = Committer(target_of(URL), "b", lambda: 7).open()
    assert held is not None
    assert (held.last, rows(store)) == (3, [b"row 1", b"row 2", b"row 3"])


def test_an_answer_that_was_lost_is_no_other_export(store: Any) -> None:
    class LosesAnswers(ObjectTarget):
        def create(self, name: str, data: bytes) -> bool:
            assert super().create(name, data)
            return super().create(name, data)  # a store's own second try

    target = LosesAnswers(URL)
    committer = Committer(target, "a", lambda: 7)
    committer.open()
    committer.claim(SETTINGS, 1)
    committer.commit(1, 1, MARK, staged(target, "a", 1, 1))
    assert rows(store) == [b"row 1"]


def test_a_target_travels_to_tasks(store: Any) -> None:
    target = target_of(URL)
    assert target.names() == []
    travelled = pickle.loads(pickle.dumps(target))
    assert (travelled.text, travelled.names()) == (URL, [])


def test_stores_that_cannot_create_are_refused(tmp_path: Any, store: Any) -> None:
    url = f"local://{tmp_path}/lake"
    with pytest.raises(BadTarget, match="--one-exporter"):
        target_of(url)
    target = target_of(url, one_exporter=True)
    committer = Committer(target, "a", lambda: 7)
    committer.open()
    committer.claim(SETTINGS, 1)
    committer.commit(1, 2, MARK, staged(target, "a", 1, 2))
    names = sorted(path.name for path in (tmp_path / "lake" / "date=d").iterdir())
    assert names == [f"{vlsn:020}-{vlsn:020}.parquet" for vlsn in (1, 2)]


def test_another_file_in_a_bucket_is_refused(store: Any) -> None:
    store.pipe("/bucket/lake/photo.jpg", b"jpg")
    with pytest.raises(BadTarget, match=r"holds photo\.jpg and no manifest"):
        Committer(target_of(URL), "a", lambda: 7).open()
