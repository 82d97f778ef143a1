"""Files of a later version, met by an open, a reader and the tools, on a disk in memory."""

from __future__ import annotations

import pytest

from tests.vlsn.logs import Machine, Opened, contents
from vlsn.errors import WrongVersion
from vlsn.format.checksum import crc
from vlsn.format.frame import FRAME_BYTES, FrameKind
from vlsn.ids import lsn_offset
from vlsn.verify.dump import dump_rows
from vlsn.verify.verify import verify

PATH = "/log/00000001.vlog"


def patched(machine: Machine, offset: int, *, kind: int, version: int) -> None:
    """The frame at ``offset`` holds a block of ``version``, and is of ``kind`` itself, under right checksums."""
    file = machine.disk.open(PATH, write=True)
    frame = bytearray(file.read(offset, FRAME_BYTES))
    block = bytearray(file.read(offset + FRAME_BYTES, int.from_bytes(frame[4:8], "little")))
    block[0] = version
    block[60:64] = crc(bytes(block[:60])).to_bytes(4, "little")
    frame[2] = kind
    frame[20:24] = crc(bytes(block), crc(bytes(frame[:3] + frame[4:20]))).to_bytes(4, "little")
    file.write(offset, [bytes(frame + block)])
    file.sync()
    file.close()


def offset_of(opened: Opened, vlsn: int) -> int:
    (at,) = opened.frames_after(vlsn - 1)[:1]
    return lsn_offset(at)


@pytest.mark.parametrize(("kind", "version", "what"), [(6, 1, "kind 6"), (0, 1, "kind 0"), (1, 2, "version 2")])
@pytest.mark.parametrize("last", [True, False])
def test_a_frame_of_a_later_version_is_no_tail(kind: int, version: int, what: str, last: bool) -> None:
    machine = Machine(3)
    opened = Opened(machine)
    for value in (b"a", b"b", b"c"):
        opened.append(value)
    at = offset_of(opened, opened.log.view.range.last if last else opened.log.view.range.last - 1)
    machine.kill()
    patched(machine, at, kind=kind, version=version)
    before = contents(machine)
    with pytest.raises(WrongVersion, match=what) as refusal:
        Opened(machine)
    assert f"{PATH}, offset {at}" in str(refusal.value)
    assert contents(machine) == before
    for look in (
        lambda: verify(machine.disk, machine.stores, "/log"),
        lambda: list(dump_rows(machine.disk, machine.stores, "/log")),
    ):
        with pytest.raises(WrongVersion, match=what):
            look()
    assert contents(machine) == before


@pytest.mark.parametrize(("kind", "version", "what"), [(6, 1, "kind 6"), (1, 2, "version 2")])
def test_a_reader_that_meets_a_later_version_does_not_call_it_damage(kind: int, version: int, what: str) -> None:
    """Damage would be mended, with a peer's bytes."""
    machine = Machine(4)
    opened = Opened(machine)
    for value in (b"a", b"b", b"c"):
        opened.append(value)
    patched(machine, offset_of(opened, opened.log.view.range.last - 1), kind=kind, version=version)
    with pytest.raises(WrongVersion, match=what):
        opened.entries()
    opened.close()


def test_every_kind_of_frame_there_is_is_read() -> None:
    """The next kind, which the tests above use, is none yet."""
    assert max(FrameKind) == 5
