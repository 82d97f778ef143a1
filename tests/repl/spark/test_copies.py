"""Partitions, read against the log that was written: every visible entry of the range, each once, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tenacity import wait_none

from repl.audit import live
from repl.spark import copies as copies_module
from repl.spark.batch import PiecePartition, VisibleReader
from repl.spark.columns import TYPES
from repl.spark.copies import Copies
from repl.spark.layout import Piece
from repl.spark.options import Use, read_options
from tests.repl.audit.logs import STORY, Copy, blocks, numbered
from tests.repl.audit.test_live import DTVLSN, served
from vlsn.errors import BadArgument, Damaged, Lagging, Restoring, Trimmed, VlsnLogError

NAMES = tuple(TYPES)


def read(*paths: Path | str, piece_bytes: int = 1 << 20, names: Sequence[str] = NAMES, **options: Any) -> pa.Table:
    """Reads what Spark would: plans, then runs each task."""
    texts = tuple(map(str, paths))
    asked = read_options({"path": ",".join(texts), **options}, Use.BATCH)
    copies = Copies.asked(asked)
    first, last = copies.bounds(asked)
    reader = VisibleReader(asked, tuple(names))
    batches = [
        batch
        for share in copies.shares(first, last, piece_bytes)
        for batch in reader.read(PiecePartition(share.copy, share.piece))
    ]
    schema = pa.schema([(name, TYPES[name]) for name in names])
    return pa.Table.from_batches(batches, schema)


def read_any(texts: Sequence[str], piece: Piece, names: Sequence[str] = NAMES) -> Iterator[Any]:
    """Reads a piece of the first of ``texts``, or of another one, as a task does."""
    reader = VisibleReader(read_options({"path": ",".join(texts)}, Use.BATCH), tuple(names))
    return reader.read(PiecePartition(0, piece))


def asked(options: dict[str, str]) -> dict[str, Any]:
    return options


@dataclass(frozen=True)
class Row:
    vlsn: int
    key: bytes | None
    value: bytes


def rows(table: pa.Table) -> list[Row]:
    columns = (table.column(name).to_pylist() for name in ("vlsn", "key", "value"))
    return [Row(*each) for each in zip(*columns, strict=True)]


Data = st.DataObject
KEYS = [b"order-1", None, b"", b"order-22", b"x", b"orders"]
sizes = st.lists(st.tuples(st.integers(1, 40), st.sampled_from([0, 10, 100, 3000])), min_size=1, max_size=60)


@settings(deadline=None, max_examples=25)
@given(data=st.data(), shape=sizes)
def test_partitions_give_each_visible_entry_of_the_range_once(
    data: st.DataObject, shape: list[tuple[int, int]]
) -> None:
    groups = [[b"%d/%d" % (at, n) + b"." * size for n in range(count)] for at, (count, size) in enumerate(shape)]
    with TemporaryDirectory() as directory:
        copy = Copy(Path(directory, "n1"), "n1", segment_bytes=data.draw(st.sampled_from([1 << 18, 1 << 20])))
        story = blocks(*groups, keys=KEYS)
        rolled = data.draw(st.integers(0, len(story)))
        for at, block in enumerate(story):
            if at == rolled and at:
                gone = blocks(*groups[at : at + 5], first_vlsn=copy.last + 1, term=1)
                copy.add(*gone).rollback(copy.last - sum(map(len, groups[at : at + 5])))
            copy.add(block)
            if data.draw(st.integers(0, 9)) == 0:
                copy.roll()
            if data.draw(st.integers(0, 9)) == 0:
                copy.checkpoint(max(copy.last - 50, 0))
        copy.checkpoint(copy.last).write(sidecars=data.draw(st.booleans()))
        values = [value for group in groups for value in group]
        model = [Row(vlsn, KEYS[vlsn % len(KEYS)] or None, value) for vlsn, value in enumerate(values, 1)]
        end = len(model)
        first, last = sorted(data.draw(st.tuples(st.integers(1, end + 3), st.integers(1, end + 3))))
        prefix = data.draw(st.sampled_from(["", "order-", "orders", "none"]))
        given: dict[str, Any] = {"from": str(first), "to": str(last), "keyPrefix": prefix}
        if last > end:
            with pytest.raises(Lagging, match=f"VLSN {last} was asked for, and .* reached VLSN {end}: "):
                read(copy.path, **given)
            given["to"] = "end"
        found = read(copy.path, piece_bytes=data.draw(st.sampled_from([5_000, 50_000, 1 << 20])), **given)
        wanted = [row for row in model[first - 1 : last] if not prefix or (row.key or b"").startswith(prefix.encode())]
        assert rows(found) == wanted
        assert rows(read(copy.path, **asked({"from": str(first)}))) == model[first - 1 :]


def test_pieces_follow_on_one_another_and_are_of_the_size_asked_for(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "n1", "n1", segment_bytes=8 << 20).add(*numbered(1000, 10, 600)).checkpoint(10_000).write()
    assert len(copy.ends) == 1  # one segment: it is cut all the same
    copies = Copies.of([str(copy.path)])
    pieces = [share.piece for share in copies.shares(1, copies.end, 500_000)]
    assert [each.first for each in pieces] == [1, *(each.last + 1 for each in pieces[:-1])]
    assert pieces[-1].last == copies.end == 10_000
    sizes = [sum(extent.end - extent.start for extent in each.extents) for each in pieces]
    assert 10 <= len(pieces) <= 14
    assert max(sizes) < 1.6 * min(sizes)


def test_a_narrow_range_is_found_without_reading_the_log(tmp_path: Path) -> None:
    copy = (
        Copy(tmp_path / "n1", "n1", segment_bytes=64 << 20).add(*numbered(30_000, 5, 200)).checkpoint(150_000).write()
    )
    copies = Copies.of([str(copy.path)])
    (share,) = copies.shares(75_000, 75_010, 1 << 20)
    assert sum(extent.end - extent.start for extent in share.piece.extents) < 1 << 20
    found = read(copy.path, **asked({"from": "75000", "to": "75010"}))
    assert found.column("vlsn").to_pylist() == list(range(75_000, 75_011))


def test_what_is_not_durable_is_not_shown(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "n1", "n1").add(*blocks(["a", "b"], ["c"])).checkpoint(2)
    copy.add(*blocks(["d"], first_vlsn=4)).write()
    assert [row.value for row in rows(read(copy.path))] == [b"a", b"b", b"c"]  # whose last block says so


def test_copies_make_one_log_of_which_each_has_what_it_knows_durable(tmp_path: Path) -> None:
    story = numbered(100, 5, 60)
    whole = Copy(tmp_path / "n1", "n1").add(*story).checkpoint(500).write()
    other = [*story[:60], *blocks(*[["other"] * 50] * 2, first_vlsn=301, term=1)]
    lagging = Copy(tmp_path / "n2", "n2").add(*other).checkpoint(300).write()
    for paths in ((whole.path, lagging.path), (lagging.path, whole.path)):
        table = read(*paths)
        assert table.column("vlsn").to_pylist() == list(range(1, 501))
        assert not any(row.value == b"other" for row in rows(table))


def test_a_copy_that_breaks_in_the_middle_is_left_for_another(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    story = numbered(100, 5, 60)
    broken = Copy(tmp_path / "n1", "n1").add(*story).checkpoint(500).write(sidecars=False)
    whole = Copy(tmp_path / "n2", "n2").add(*story).checkpoint(500).write()
    broken.flip(251, 130)
    with pytest.raises(Damaged, match=r"00000001\.vlog: VLSN 251 cannot be read; verify that copy"):
        read(broken.path)
    assert read(broken.path, whole.path).column("vlsn").to_pylist() == list(range(1, 501))
    assert "VLSN 251 is looked for in the other sources" in capfd.readouterr().err


def test_damage_in_what_nobody_sees_hides_nothing(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "n1", "n1").add(*numbered(10, 5, 60))
    place = copy.frame(*_record(copy))
    copy.add(*numbered(10, 5, 60, first_vlsn=51)).checkpoint(100).write(sidecars=False)
    copy.flip_at(1, (place & 0xFFFF_FFFF) + 30)
    assert read(copy.path).column("vlsn").to_pylist() == list(range(1, 101))


def _record(copy: Copy) -> tuple:  # type: ignore[type-arg]
    from vlsn.format.frame import FrameKind
    from vlsn.format.records import CheckpointStart

    return FrameKind.CHECKPOINT_START, CheckpointStart(1, 1, copy.last, 0, 1).encode()


def test_a_trimmed_beginning_is_an_error_with_the_first_there_is_or_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    copy = Copy(tmp_path / "n1", "n1").add(*numbered(100, 5, 60, first_vlsn=501)).checkpoint(1000).write()
    assert read(copy.path).column("vlsn").to_pylist() == list(range(501, 1001))
    with pytest.raises(Trimmed, match="VLSN 100 was cleaned away; the log begins at VLSN 501: read from 501") as gone:
        read(copy.path, **asked({"from": "100"}))
    assert gone.value.first == 501
    with pytest.raises(Trimmed, match="begins at VLSN 501"):
        read(copy.path, **asked({"from": "1", "to": "500"}))
    found = read(copy.path, **asked({"from": "100", "failOnTrim": "false"}))
    assert found.column("vlsn").to_pylist()[0] == 501
    assert "VLSN 100 was cleaned away; the log begins at VLSN 501, and so does this read" in capfd.readouterr().err


def test_times_say_where_to_begin_and_where_to_end(tmp_path: Path) -> None:
    from tests.repl.audit.logs import CLOCK_US

    copy = Copy(tmp_path / "n1", "n1").add(*numbered(100, 5, 60)).checkpoint(500).write()
    times = read(copy.path).column("time").cast(pa.int64()).to_pylist()
    assert times[:6] == [CLOCK_US + 1] * 5 + [CLOCK_US + 6]
    since = read(copy.path, since="2023-11-14T22:13:20.000101Z").column("vlsn").to_pylist()
    until = read(copy.path, until="2023-11-14T22:13:20.000101Z").column("vlsn").to_pylist()
    assert (until, since) == (list(range(1, 101)), list(range(101, 501)))
    assert read(copy.path, since="2030-01-01").num_rows == 0


def test_nodes_that_lag_are_given_time_and_then_the_read_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that ended where they happened to be would lack entries, and say nothing."""
    monkeypatch.setattr(copies_module, "POLL_S", 0.01)
    story = [Copy(tmp_path / node, node).add(*STORY).write() for node in ("n1", "n2")]
    with served(story[0]) as one, served(story[1]) as two:
        one.knows, two.knows = [700] * 5, [900] * 8
        assert read(one.url, two.url, names=("vlsn",), to="1500").num_rows == 1500
        for to, count in (("end", DTVLSN), ("800", 800)):
            one.knows, two.knows = [700] * 5, [900] * 8
            assert read(one.url, two.url, names=("vlsn",), atLeast="1500", to=to).num_rows == count
        one.knows, two.knows = [700] * 5, [900] * 8
        assert read(one.url, two.url, names=("vlsn",), to="800").num_rows == 800
        assert len(two.knows) == 7  # not asked again
        monkeypatch.setattr(copies_module, "LAG_S", 0.2)
        one.knows, two.knows = [700] * 1000, [900] * 1000
        with pytest.raises(Lagging, match=rf"VLSN 1500 was asked for, and {one.url}, {two.url} reached VLSN 900 after"):
            read(one.url, two.url, to="1500")


def test_copies_of_two_groups_are_refused(tmp_path: Path) -> None:
    for node, group in (("n1", "g"), ("n2", "h")):
        Copy(tmp_path / node, node, group=group).add(*numbered(3)).checkpoint(3).write()
    with pytest.raises(BadArgument, match=r"one load reads one group: .*n1 is of 'g', .*n2 is of 'h'"):
        read(tmp_path / "n1", tmp_path / "n2")


@pytest.mark.parametrize("make", ["gone", "empty", "file", "restoring"])
def test_what_is_no_readable_copy_says_so(tmp_path: Path, make: str) -> None:
    path = tmp_path / "n1"
    if make == "empty":
        path.mkdir()
    elif make == "file":
        path.write_text("no log")
    elif make == "restoring":
        Copy(path, "n1").add(*numbered(3)).checkpoint(3).write()
        from vlsn.segments.restore_marker import MARKER_NAME, Marker

        marker = Marker(first_segment=1, after=0, why="test", begun_us=1)  # type: ignore[arg-type]
        (path / MARKER_NAME).write_bytes(marker.encode())
    with pytest.raises(VlsnLogError) as refused:
        read(path)
    assert str(path) in str(refused.value)
    assert isinstance(refused.value, Restoring) == (make == "restoring")


def test_a_log_without_an_entry_has_no_rows(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "n1", "n1").write()
    assert read(copy.path).num_rows == 0


def test_some_columns_come_alone_and_in_their_order(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "n1", "n1").add(*blocks(["a", "b"], keys=[b"k", None])).checkpoint(2).write()
    table = read(copy.path, names=("value", "vlsn"))
    assert table.to_pydict() == {"value": [b"a", b"b"], "vlsn": [1, 2]}
    whole = read(copy.path).to_pydict()
    assert (whole["txn"], whole["key"], whole["term"]) == ([None, None], [None, b"k"], [1, 1])


def test_a_piece_whose_end_is_missing_is_an_error(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "n1", "n1").add(*numbered(10, 5, 60)).checkpoint(50).write()
    (share,) = Copies.of([str(copy.path)]).shares(1, 50, 1 << 20)
    with pytest.raises(Damaged, match="VLSN 51 cannot be read"):
        list(read_any([str(copy.path)], replace(share.piece, last=60)))


def test_what_a_copy_does_not_know_to_be_durable_fills_no_gap(tmp_path: Path) -> None:
    """The entries of ``n2`` from VLSN 301 on are another history's, which nobody may see wherever others fail."""
    other = [*numbered(60, 5, 60), *blocks(*[["other"] * 50] * 2, first_vlsn=301, term=1)]
    lagging = Copy(tmp_path / "n2", "n2").add(*other).checkpoint(300).write()
    trimmed = Copy(tmp_path / "n1", "n1").add(*numbered(30, 5, 60, first_vlsn=351)).checkpoint(500).write()
    with pytest.raises(Damaged, match="no source has VLSN 301"):
        read(trimmed.path, lagging.path)
    broken = Copy(tmp_path / "n3", "n3").add(*numbered(100, 5, 60)).checkpoint(500).write(sidecars=False)
    broken.flip(321, 130)
    with pytest.raises(Damaged, match="VLSN 321 cannot be read"):
        read(broken.path, lagging.path)


def test_a_segment_that_is_gone_is_an_error_at_its_first_vlsn(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "n1", "n1").add(*numbered(1000, 5, 100)).checkpoint(5000).write()
    assert len(copy.ends) > 4
    (copy.path / "00000003.vlog").unlink()
    with pytest.raises(Damaged, match=r"VLSN \d+ cannot be read") as gone:
        read(copy.path, piece_bytes=1 << 30)
    first = int(str(gone.value).partition("VLSN ")[2].split()[0])
    assert 1 < first < 5000
    assert read(copy.path, **asked({"to": str(first - 1)})).num_rows == first - 1


def test_nodes_share_a_read_and_one_that_dies_in_it_is_left_for_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    copies = [Copy(tmp_path / node, node, segment_bytes=1 << 20).add(*numbered(400, 5, 300)) for node in ("n1", "n2")]
    with served(copies[0].write()) as one, served(copies[1].write()) as two:
        found = Copies.of([one.url, two.url]).shares(1, DTVLSN, 50_000)
        assert {share.copy for share in found} == {0, 1}
        texts = [one.url, two.url]
        (whole,) = Copies.of(texts[:1]).shares(1, DTVLSN, 1 << 30)
        batches = read_any(texts, whole.piece, ("vlsn",))
        one.faults += [410]
        got = [vlsn for batch in batches for vlsn in batch.column("vlsn").to_pylist()]
        assert got == list(range(1, DTVLSN + 1))
        assert "VLSN 1 is looked for in the other sources" in capfd.readouterr().err
        one.faults += [410]
        with pytest.raises(VlsnLogError, match="answered 410"):
            list(read_any(texts[:1], whole.piece, ("vlsn",)))


def test_a_node_that_does_not_answer_is_told_and_left_out(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live._fetch.retry, "wait", wait_none())
    with served(Copy(tmp_path / "n2", "n2").add(*STORY).write()) as gone:
        dead = gone.url
    with served(Copy(tmp_path / "n1", "n1").add(*STORY).write()) as server:
        assert read(dead, server.url, names=("vlsn",)).num_rows == DTVLSN
        assert "is the node up?; the other sources are read" in capfd.readouterr().err
    with pytest.raises(VlsnLogError, match=r"is the node up\?"):
        read(dead)
