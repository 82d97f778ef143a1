"""``read_arrow`` on a group of real nodes: the rows are the entries that a read gives, the log's own left out."""

from __future__ import annotations

from typing import Any

import pytest

from repl import connect_sync, read_arrow
from tests.e2e.group import Group

pytestmark = [pytest.mark.real, pytest.mark.feature("Arrow")]


def rows(reader: Any) -> list[tuple[int, int, bytes | None, bytes]]:
    found = [row for batch in reader for row in batch.to_pylist()]
    return [(row["vlsn"], row["term"], row["key"], row["value"]) for row in found]


def test_rows_are_the_entries_of_a_read(group: Group) -> None:
    urls = ",".join(group.urls.values())
    with connect_sync(urls, exactly_once=True) as log:
        first, _ = log.append_many([b"%d" % n for n in range(100)], keys=[b"k" if n % 3 else None for n in range(100)])
        log.append(b"alone")
        with log.transaction() as txn:
            txn.append(b"one", key=b"t")
            txn.append_many([b"v" * 1000] * 200, keys=[b"large"] * 200)
        last = log.append(b"last")
        entries = [(each.vlsn, each.term, each.key, each.value) for each in log.read()]
        time = next(iter(log.read(last))).time
    assert rows(read_arrow(urls, consistency="linearizable")) == entries
    group.settle()
    for url in group.urls.values():
        within = [each for each in entries if first + 7 <= each[0] <= last - 7]
        assert rows(read_arrow(url, first + 7, last - 7)) == within
        assert rows(read_arrow(url, "end")) == []
    assert rows(read_arrow(urls, at=time))[-1:] == entries[-1:]
