"""How a mirror cuts what it appends: in order, nothing left out, no transaction cut, and within limits."""

from __future__ import annotations

from itertools import groupby, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl.auth.tokens import new_secret
from repl.cdc.consumer import CdcContext, CdcPosition
from repl.cdc.shipped.mirror import Mirror, _parts
from repl.client.batch_rows import ROW_OVERHEAD_BYTES
from tests.fakes.random import SeededRandom
from tests.repl.client.group import ServedNode
from tests.repl.credentials.test_bearer import written
from tests.repl.node.test_access import made
from tests.repl.web.one_node import OneNode, started
from vlsn.errors import BadArgument, Unauthorized
from vlsn.format.block import Entry
from vlsn.ids import Term, Vlsn
from vlsn.limits import MIB

RUNS = st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 60), min_size=1, max_size=9)), min_size=1, max_size=20)


def events_of(runs: list[tuple[bool, list[int]]]) -> list[Entry]:
    """Makes events: each run is a transaction, or plain entries; an entry of the log's own ends a transaction."""
    events: list[Entry] = []
    vlsn = 1
    for is_transaction, sizes in runs:
        first = vlsn
        for size in sizes:
            events.append(Entry(Vlsn(vlsn), Term(1), 1, 0, first if is_transaction else 0, None, bytes(size)))
            vlsn += 1
        vlsn += is_transaction
    return events


def size(events: list[Entry]) -> int:
    return sum(len(event.value) + ROW_OVERHEAD_BYTES for event in events)


@given(RUNS, st.integers(1, 400), st.integers(1, 12))
def test_parts_are_the_events_and_cut_no_transaction(
    runs: list[tuple[bool, list[int]]], bytes_max: int, entries_max: int
) -> None:
    events = events_of(runs)
    parts = list(_parts(events, bytes_max, entries_max))
    assert [event for part in parts for event in part] == events and all(parts)
    whole = [{event.txn for event in part if event.txn} for part in parts]
    assert sum(map(len, whole)) == len(set().union(*whole)), "no transaction is in two parts"
    for part in parts:
        alone = len(list(groupby(part, lambda event: event.txn or -event.vlsn))) == 1
        assert alone or (size(part) <= bytes_max and len(part) <= entries_max)
    for one, other in pairwise(parts):  # and none is smaller than it had to be
        head = [event for event in other if event.txn and event.txn == other[0].txn] or other[:1]
        assert size(one) + size(head) > bytes_max or len(one) + len(head) > entries_max


def test_a_mirror_carries_the_token_of_its_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = new_secret(SeededRandom(1))
    path = written(tmp_path / "token", one.text)

    async def strict() -> OneNode:
        node = await started(segment_bytes=2 * MIB, keyed=True, anonymous="none")
        await made(node, one, "metrics", "read", "append", "consume")
        return node

    def start(url: str, **options: str) -> CdcPosition:
        context = CdcContext("copy", "n1", "origin", 5, options={"url": url, **options}, run_on="master", begins=True)
        mirror = Mirror()
        try:
            return mirror.start(context)
        finally:
            mirror.stop()

    monkeypatch.setenv("VLSNLOG_TOKEN", one.text)
    with ServedNode(strict) as served:
        assert start(served.url, token_file=path).next == 5
        with pytest.raises(Unauthorized):
            start(served.url)
        with pytest.raises(BadArgument, match="https"):
            start("http://10.0.0.7:7701", token_file=path)
