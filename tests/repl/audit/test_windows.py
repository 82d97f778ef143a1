"""Reading by windows, held against reading a segment whole: the same of every segment, right or not."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from repl.audit import windows
from repl.audit.check import check_segment
from repl.audit.digest import Checksums
from repl.audit.directory import DirectorySource
from repl.audit.plan import Bounds, Part
from repl.audit.profile import SAMPLES_MAX
from repl.audit.segment_audit import SegmentAudit
from repl.audit.source import Unreadable
from repl.audit.tasks import read
from repl.audit.unread import Missed
from repl.audit.windows import is_plain, read_plain
from tests.repl.audit.forge import Forge
from tests.repl.audit.life import Left
from tests.repl.audit.logs import Copy, blocks
from vlsn.format.frame import FLAG_AT
from vlsn.format.segment import FIRST_FRAME
from vlsn.limits import MIB

BOUNDS = Bounds(1, 1 << 40)
KEYS = [b"k", None, b"order-22", b""]
WINDOWS = [8 << 10, 20_000, MIB]
shapes = st.lists(st.tuples(st.integers(1, 30), st.sampled_from([0, 7, 100, 900])), min_size=1, max_size=40)


@contextmanager
def of(window_bytes: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "WINDOW_BYTES", window_bytes)
        yield


def by_windows(source: DirectorySource, part: Part) -> SegmentAudit | Missed:
    (found,) = read([source], BOUNDS, SAMPLES_MAX, Checksums.SHA256, (part,))  # type: ignore[misc]
    return found


def whole(source: DirectorySource, part: Part) -> SegmentAudit:
    indexed = source.indexed([part]).get(part.number) if part.indexed else None
    return check_segment(
        source.read(part, 0, part.end), part, source.text, BOUNDS, source.sidecar(part), indexed, SAMPLES_MAX
    )


def same(path: Path) -> list[bool]:
    """Holds both readings of each segment of a directory against each other. Returns of those that are closed and hold
    something which were plain."""
    source = DirectorySource(str(path), str(path))
    plain = []
    for part in source.survey(0).parts:
        assert pickle.dumps(by_windows(source, part)) == pickle.dumps(whole(source, part)), part
        if part.end > FIRST_FRAME and not part.newest:
            plain.append(read_plain(source, part, bytearray(part.end)) is not None)
    return plain


@settings(deadline=None, max_examples=60, phases=[Phase.explicit, Phase.generate])
@given(data=st.data(), shape=shapes)
def test_both_readings_find_the_same(data: st.DataObject, shape: list[tuple[int, int]]) -> None:
    window_bytes = data.draw(st.sampled_from(WINDOWS))
    keys = data.draw(st.sampled_from([None, KEYS]))
    groups = [[b"%d" % n + b"." * size for n in range(count)] for count, size in shape]
    with TemporaryDirectory() as directory, of(window_bytes):
        copy = Copy(Path(directory, "n1"), "n1", segment_bytes=1 << 18)
        hidden = False
        story = blocks(*groups, keys=keys)
        for block in story:
            copy.add(block)
            match data.draw(st.integers(0, 12)):
                case 0:
                    copy.roll()
                case 1:
                    copy.checkpoint(max(copy.last - 40, 0))
                case 2:
                    kept = copy.last
                    copy.add(*blocks([b"gone"] * 3, first_vlsn=kept + 1)).rollback(kept)
                    hidden = True
        copy.roll().write(sidecars=data.draw(st.booleans()))
        plain = same(copy.path)
        large = max(map(len, story)) + 64 + FIRST_FRAME > window_bytes
        assert hidden or large or all(plain)
        file = data.draw(st.sampled_from(sorted(copy.path.glob("*.vlog"))))
        bytes_of = bytearray(file.read_bytes())
        at = data.draw(st.integers(0, min(len(bytes_of), copy.ends[int(file.stem)]) - 1))
        bytes_of[at] ^= 1 << data.draw(st.integers(0, 7))
        file.write_bytes(bytes_of[: data.draw(st.sampled_from([len(bytes_of), at + 1]))])
        with suppress(Unreadable):  # no header is left
            same(copy.path)


@pytest.mark.parametrize("window_bytes", WINDOWS)
def test_both_find_the_same_in_what_nodes_have_left(left: Left, window_bytes: int) -> None:
    """Rollbacks, producers, transactions, members, checkpoints and terms of a group that lived."""
    with of(window_bytes):
        found = [plain for path in left.paths.values() for plain in same(path)]
    assert any(found)
    assert not all(found)


def test_a_flag_that_a_window_has_not_seen_is_seen(tmp_path: Path) -> None:
    """One overmarked block in the last window of a segment makes all of it be read again."""
    copy = Copy(tmp_path / "n1", "n1").add(*blocks(*[[b"v" * 400] * 20] * 60)).roll().write(sidecars=False)
    source = DirectorySource(str(copy.path), str(copy.path))
    part = source.survey(0).parts[0]
    into = bytearray(part.end)
    assert read_plain(source, part, into) is not None
    frames = [frame for frame in Forge(copy.path).blocks() if frame.number == 1]
    copy.flip_at(1, frames[-1].offset + FLAG_AT, 0xA5)
    assert read_plain(source, part, into) is None
    found = by_windows(source, part)
    assert isinstance(found, SegmentAudit)
    assert (found.findings, found.blocks) == ((), len(frames) - 1)


def test_what_is_not_plain_is_there_for_the_check(left: Left) -> None:
    """Blocks of producers, transactions and members are in the buffer, all others leave no byte there."""
    kept = 0
    for path in left.paths.values():
        source = DirectorySource(str(path), str(path))
        for part in source.survey(0).parts:
            into = bytearray(part.end)
            plain = read_plain(source, part, into)
            if plain is None:
                continue
            frames, found = plain
            assert frames.heads is not None
            data = bytes(source.read(part, 0, part.end))
            for offset, end, alone in zip(
                found.offsets.tolist(), found.ends.tolist(), is_plain(found.headers).tolist(), strict=True
            ):
                if not alone:
                    assert into[offset:end] == data[offset:end]
                    kept += 1
    assert kept
