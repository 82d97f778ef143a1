"""Every rule of the audit: a fault seeded into one of three copies is its first finding, at that VLSN, in that copy.

The copies are what a group of real nodes left; the faults are made by ``forge.py``, which knows the formats from their
page alone.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from zlib import crc32

import pytest

from repl.audit.history import parts_of
from repl.audit.report import AuditReport
from repl.audit.rules import RULES
from repl.audit.since import read_since
from tests.repl.audit.forge import (
    BLOCK,
    CHECKPOINT_END,
    COMMIT,
    DATA,
    OVERMARKED,
    PRODUCERS,
    ROLLBACK_START,
    TXNS,
    Forge,
    Frame,
    crc32c,
    entry_digest,
    forged,
)
from tests.repl.audit.jobs import audited
from tests.repl.audit.life import PRODUCER, Left
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.verify.inspection import Rule
from vlsn.verify.verify import verify

PAGE = Path(__file__).parents[3] / "docs" / "audit-rules.md"


@dataclass
class Seeded:
    """Copies that a fault is seeded into: ``odd`` is the one, and was never deposed."""

    left: Left
    path: Path

    @property
    def odd(self) -> str:
        return next(name for name in reversed(self.left.paths) if name != self.left.deposed)

    @cached_property
    def forges(self) -> dict[str, Forge]:
        return {name: Forge(self.path / name) for name in self.left.paths}

    @property
    def forge(self) -> Forge:
        return self.forges[self.odd]

    @property
    def deposed(self) -> Forge:
        return self.forges[self.left.deposed]

    def plain(self, number: int = 2) -> Frame:
        """Returns a block of one long entry, in the middle of a segment."""
        frames = [frame for frame in self.forge.frames(number) if frame.visible and frame.get("value_bytes") > 3000]
        return frames[len(frames) // 2]

    def later(self) -> Frame:
        """Returns such a block of the later term, behind the first of that term's segment."""
        blocks = self.forge.blocks()
        term = blocks[-1].get("term")
        return [block for block in blocks if block.get("term") == term and block.get("value_bytes") > 3000][5]

    def history(self, *lines: dict[str, object]) -> Path:
        path = self.path / "history.ndjson"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def audited(self) -> AuditReport:
        """Audits the copies, with a history and an earlier report where there are some."""
        history, since = self.path / "history.ndjson", self.path / "since.json"
        return audited(
            *(self.path / name for name in self.left.paths),
            history=parts_of(str(history)) if history.exists() else None,
            since=read_since(str(since), deep=True) if since.exists() else None,
        )


At = tuple[str, int]
"""Node (or the history) and VLSN."""
SEEDED: dict[str, Callable[[Seeded], At]] = {}


def seeded(rule: str, variant: str = "") -> Callable[[Callable[[Seeded], At]], Callable[[Seeded], At]]:
    def keep(fault: Callable[[Seeded], At]) -> Callable[[Seeded], At]:
        SEEDED[f"{rule}: {variant}" if variant else rule] = fault
        return fault

    return keep


# Damage.


@seeded("segment-header")
def _(it: Seeded) -> At:
    it.forge.flip(3, 130)
    return it.odd, next(frame for frame in it.forge.frames(3) if frame.visible).first


@seeded("segment-header", "of another node")
def _(it: Seeded) -> At:
    other = next(name for name in it.left.paths if name not in (it.odd, it.left.deposed))
    shutil.copyfile(it.forges[other].files[2], it.forge.files[2])
    return it.odd, next(frame for frame in it.forge.frames(2) if frame.visible).first


@seeded("segment-header", "of another node, alone")
def _(it: Seeded) -> At:
    """Its sidecar says nothing, and all its blocks are right."""
    found = SEEDED["segment-header: of another node"](it)
    it.forge.forget_sidecar(2)
    return found


@seeded("segment-header", "two exchanged")
def _(it: Seeded) -> At:
    first = next(frame for frame in it.forge.frames(2) if frame.visible).first
    two, three = it.forge.files[2].read_bytes(), it.forge.files[3].read_bytes()
    it.forge.files[2].write_bytes(three)
    it.forge.files[3].write_bytes(two)
    return it.odd, first


@seeded("segment-header", "one twice")
def _(it: Seeded) -> At:
    first = next(frame for frame in it.forge.frames(2) if frame.visible).first
    shutil.copyfile(it.forge.files[2], it.forge.path / "00000099.vlog")
    return it.odd, first


@seeded("gap", "the first, and no index")
def _(it: Seeded) -> At:
    first = next(frame for frame in it.forge.frames(1) if frame.visible).first
    it.forge.files[1].unlink()
    it.forge.forget_sidecar(1)
    shutil.rmtree(it.forge.path / "index")
    return it.odd, first


@seeded("gap")
def _(it: Seeded) -> At:
    first = next(frame for frame in it.forge.frames(2) if frame.visible).first
    it.forge.files[2].unlink()
    it.forge.forget_sidecar(2)
    return it.odd, first


@seeded("frame-header")
def _(it: Seeded) -> At:
    it.forge.zero(frame := it.plain())
    return it.odd, frame.first


@seeded("frame-crc")
def _(it: Seeded) -> At:
    it.forge.flip(2, (frame := it.plain()).offset + 200)
    it.forge.forget_sidecar(2)
    return it.odd, frame.first


@seeded("block-header")
def _(it: Seeded) -> At:
    frame = it.plain()
    it.forge.write(frame, frame.payload[:60] + bytes(4) + frame.payload[64:], checksums="frame")
    return it.odd, frame.first


@seeded("block-body")
def _(it: Seeded) -> At:
    frame = it.plain()
    it.forge.write(frame, frame.payload[:-5] + b"other", checksums="frame")
    return it.odd, frame.first


@seeded("transaction")
def _(it: Seeded) -> At:
    frame = next(frame for frame in it.forge.blocks() if frame.get("flags") & TXNS)
    assert frame.payload[64 : 64 + frame.get("count")][-1] == COMMIT
    it.forge.body(frame, 64 + frame.get("count") - 1, bytes([DATA]))
    return it.odd, frame.first


@seeded("record")
def _(it: Seeded) -> At:
    record = it.forge.records(CHECKPOINT_END)[0]
    it.forge.put(record, "first_vlsn", record.get("last_vlsn") + 1)
    before = [
        frame.last for frame in it.forge.blocks() if (frame.number, frame.offset) < (record.number, record.offset)
    ]
    return it.odd, before[-1] + 1


# Order.


@seeded("overmark", "a flag that no rollback has set")
def _(it: Seeded) -> At:
    frame = it.plain()
    it.forge.write(frame, frame.payload, flag=OVERMARKED)
    return it.odd, frame.first


@seeded("overmark", "a flag that a rollback has not set")
def _(it: Seeded) -> At:
    frame = next(frame for frame in it.deposed.frames() if frame.kind == BLOCK and frame.flag)
    it.deposed.write(frame, frame.payload, flag=0)
    return it.left.deposed, frame.first


@seeded("contiguity")
def _(it: Seeded) -> At:
    frame = it.plain()
    it.forge.put(frame, "first_vlsn", frame.first + 7)
    return it.odd, frame.first


@seeded("term-order")
def _(it: Seeded) -> At:
    frame = it.later()
    it.forge.put(frame, "term", frame.get("term") - 1)
    return it.odd, frame.first


@seeded("term-order", "a term of the future")
def _(it: Seeded) -> At:
    """The block at fault is the one that stands out, and not the next one, whose term is lower."""
    frame = it.plain()
    it.forge.put(frame, "term", 99)
    return it.odd, frame.first


# Claims.


@seeded("overmarked-durable")
def _(it: Seeded) -> At:
    given_up = [frame for frame in it.deposed.frames() if frame.kind == BLOCK and frame.flag]
    assert given_up[0].first == it.left.matchpoint + 1
    it.deposed.put(given_up[2], "dtvlsn", given_up[1].last)
    return it.left.deposed, it.left.matchpoint + 1


@seeded("dtvlsn", "it falls")
def _(it: Seeded) -> At:
    frame = it.plain()
    it.forge.put(frame, "dtvlsn", 1)
    return it.odd, frame.first


@seeded("dtvlsn", "it falls behind a segment's end")
def _(it: Seeded) -> At:
    frame = next(frame for frame in it.forge.frames(3) if frame.visible)
    it.forge.put(frame, "dtvlsn", 1)
    return it.odd, frame.first


@seeded("dtvlsn", "it lies past the log's end")
def _(it: Seeded) -> At:
    record = it.forge.records(CHECKPOINT_END)[0]
    end = record.get("last_vlsn")
    it.forge.put(it.forge.put(record, "last_vlsn", end + 10), "dtvlsn", end + 10)
    return it.odd, end + 1


@seeded("producer-sequence", "one is there twice")
def _(it: Seeded) -> At:
    return it.odd, _renumbered(it, 4, 3)


@seeded("producer-sequence", "one is missing")
def _(it: Seeded) -> At:
    return it.odd, _renumbered(it, 4, 5)


@seeded("producer-sequence", "one is there twice, segments apart")
def _(it: Seeded) -> At:
    return it.odd, _renumbered(it, 6, 5)


@seeded("producer-sequence", "a transaction is there twice")
def _(it: Seeded) -> At:
    frames = [frame for frame in it.forge.blocks() if frame.get("flags") & TXNS and frame.get("flags") & PRODUCERS]
    ids = [frame.payload[at : at + 8] for frame in frames[:2] for at in [_producers_at(frame)]]
    it.forge.body(frames[1], _producers_at(frames[1]), ids[0])
    return it.odd, frames[1].first


def _producers_at(frame: Frame) -> int:
    kinds = frame.get("count") if frame.get("flags") & 1 else 0
    txns = 8 * frame.get("count") if frame.get("flags") & TXNS else 0
    return 64 + -(-kinds // 8) * 8 + txns


def _renumbered(it: Seeded, sequence: int, other: int) -> int:
    """Gives a producer's submission another sequence; returns its VLSN."""
    for frame in it.forge.blocks():
        if frame.get("flags") & PRODUCERS and frame.get("submissions") == 1:
            at = _producers_at(frame)
            if struct.unpack_from("<QQ", frame.payload, at) == (PRODUCER, sequence):
                it.forge.body(frame, at + 8, struct.pack("<Q", other))
                return frame.first
    raise AssertionError(f"no submission {sequence}")


@seeded("shorter-than-claimed", "by its own word")
def _(it: Seeded) -> At:
    it.forge.state("idle_end", lambda end: {**end, "vlsn": it.left.last + 5, "dtvlsn": it.left.last + 5})
    return it.odd, it.left.last + 1


@seeded("shorter-than-claimed", "by the majority's")
def _(it: Seeded) -> At:
    cuts = dict(zip([name for name in it.left.paths if name != it.odd], (40, 50), strict=True))
    for name, after in cuts.items():
        it.forges[name].cut_after(after)
    name, after = max(cuts.items(), key=lambda cut: cut[1])
    return name, Forge(it.path / name).blocks()[-1].last + 1


# Derived files.


@seeded("sidecar")
def _(it: Seeded) -> At:
    first = next(frame for frame in it.forge.frames(2) if frame.visible).first
    it.forge.sidecar(2, 32, struct.pack("<Q", first + 1))
    return it.odd, first


@seeded("index")
def _(it: Seeded) -> At:
    key = next(key for key in it.forge.keys("index") if key[:1] == b"b")
    first, count = int.from_bytes(key[1:], "big"), 0

    def moved(value: bytes) -> bytes:
        nonlocal count
        (count,) = struct.unpack_from("<I", value, 8)
        assert count > 1
        at = 24 + 4 * count + 4
        return value[:at] + struct.pack("<I", struct.unpack_from("<I", value, at)[0] + 8) + value[at + 4 :]

    delta = 0

    def looked(value: bytes) -> bytes:
        nonlocal delta
        delta = struct.unpack_from("<I", value, 24 + 4)[0]
        return moved(value)

    it.forge.store("index", key, looked)
    return it.odd, first + delta


@seeded("state")
def _(it: Seeded) -> At:
    ends = []

    def shifted(record: dict[str, object]) -> dict[str, object]:
        runs = record["term_runs"]
        assert isinstance(runs, list)
        ends.append(runs[0][2])
        return {**record, "term_runs": [[*runs[0][:2], ends[0] + 1], [runs[1][0], ends[0] + 2, runs[1][2]], *runs[2:]]}

    it.forge.state("record", shifted)
    return it.odd, ends[0] + 1


@seeded("node-file")
def _(it: Seeded) -> At:
    it.forge.node_file(32, struct.pack("<QQ", 1, 0))
    it.forge.node_file(128, bytes(32))
    return it.odd, 0


@seeded("node-file", "it is missing")
def _(it: Seeded) -> At:
    (it.forge.path / "node.id").unlink()
    return it.odd, 0


# Between copies.


@seeded("name-reused")
def _(it: Seeded) -> At:
    """A block that the deposed master gave up gets the name that its successor gave."""
    given_up = next(frame for frame in it.deposed.frames() if frame.kind == BLOCK and frame.flag)
    successor = it.forge.block(given_up.first)
    it.deposed.put(given_up, "term", successor.get("term"))
    return it.left.deposed, given_up.first


@seeded("name-reused", "a segment's")
def _(it: Seeded) -> At:
    """Another segment takes a number that an earlier audit has seen, as of a disk that went back in time."""
    (it.path / "since.json").write_text(it.audited().to_json())
    frame = it.plain(3)
    it.forge.body(frame, len(frame.payload) - 5, b"other")
    it.forge.salted(3, it.forge.salt(3) ^ 0x5A5A)
    return it.odd, next(frame for frame in it.forge.frames(3) if frame.visible).first


@seeded("changed-past")
def _(it: Seeded) -> At:
    """All copies say the same, and not what they said."""
    report = it.audited()
    (it.path / "since.json").write_text(report.to_json())
    changed = it.plain().first
    for forge in it.forges.values():
        frame = forge.block(changed)
        forge.body(frame, len(frame.payload) - 5, b"other")
    n1 = it.forges["n1"]
    return "n1", next(frame for frame in n1.frames(n1.block(changed).number) if frame.visible).first


@seeded("divergence")
def _(it: Seeded) -> At:
    frame = it.plain()
    it.forge.body(frame, len(frame.payload) - 5, b"other")
    return it.odd, frame.first


@seeded("divergence", "in the last block's term")
def _(it: Seeded) -> At:
    frame = it.forge.blocks()[-1]
    it.forge.put(frame, "term", 99)
    return it.odd, frame.first


@seeded("divergence", "under the checksums that were there")
def _(it: Seeded) -> At:
    """A forger changes 16 bytes of a value, and 8 more so that no checksum changes; the sidecar is right still."""
    frame = it.plain()
    _forge(it.forge, frame)
    return it.odd, frame.first


@seeded("changed-past", "under the checksums that were there")
def _(it: Seeded) -> At:
    """The same in all copies since an earlier audit."""
    (it.path / "since.json").write_text(it.audited().to_json())
    changed = it.plain().first
    for forge in it.forges.values():
        _forge(forge, forge.block(changed))
    n1 = it.forges["n1"]
    return "n1", next(frame for frame in n1.frames(n1.block(changed).number) if frame.visible).first


def _forge(forge: Forge, frame: Frame) -> None:
    at = len(frame.payload) - frame.get("value_bytes") + 20
    payload = forged(frame.payload, at, b"forged by someone"[:16])
    assert payload != frame.payload
    assert (crc32c(payload), crc32(payload)) == (crc32c(frame.payload), crc32(frame.payload))
    sidecar = forge.path / f"{frame.number:08}.vidx"
    kept = sidecar.read_bytes()
    forge.write(frame, payload, checksums="none")
    sidecar.write_bytes(kept)
    assert verify(PosixDisk(), LmdbStores(), str(forge.path)).ok


# A client's history.


def _said(it: Seeded, frame: Frame) -> dict[str, object]:
    return {"vlsn": frame.first, "digest": entry_digest(frame.payload[-frame.get("value_bytes") :])}


@seeded("history-missing")
def _(it: Seeded) -> At:
    entry = next(frame for frame in it.forge.blocks() if frame.get("term") == it.later().get("term"))  # a TERM entry
    it.history({"vlsn": entry.first, "digest": entry_digest(b"lost")}, _said(it, it.plain()))
    return "n1", entry.first


@seeded("history-differs")
def _(it: Seeded) -> At:
    it.history({"vlsn": it.plain().first, "digest": entry_digest(b"another")})
    return "n1", it.plain().first


@seeded("history-read")
def _(it: Seeded) -> At:
    it.history({"vlsn": it.plain().first, "digest": entry_digest(b"another"), "read": True})
    return "n1", it.plain().first


@seeded("history-twice")
def _(it: Seeded) -> At:
    """A second entry with the bytes of the first, in all copies."""
    first, second = it.plain(2), it.plain(3)
    for forge in it.forges.values():
        value = first.payload[-first.get("value_bytes") :]
        forge.body(forge.block(second.first), len(second.payload) - len(value), value)
    it.history({**_said(it, first), "once": True})
    return "n1", second.first


@seeded("history-refused")
def _(it: Seeded) -> At:
    it.history({"digest": _said(it, it.plain())["digest"], "once": True})
    return "n1", it.plain().first


@seeded("history-order")
def _(it: Seeded) -> At:
    first, second = _said(it, it.plain(2)), _said(it, it.plain(3))
    it.history({**first, "sent": 5.0, "acked": 5.5}, {**second, "sent": 4.0, "acked": 4.5})
    return "history.ndjson", it.plain(3).first


def test_the_copies_as_they_were_left_are_healthy(left: Left, tmp_path: Path) -> None:
    report = audited(*left.paths.values())
    assert (report.equal, report.findings, report.compared_to) == (True, [], left.last)
    assert all(len(Forge(path).active()) >= 4 for path in left.paths.values())
    assert Forge(left.paths[left.deposed]).records(ROLLBACK_START)


def test_every_rule_has_a_seeded_fault() -> None:
    assert {name.partition(":")[0] for name in SEEDED} == set(RULES)


@pytest.mark.parametrize("name", SEEDED)
def test_a_seeded_fault_is_the_first_finding(left: Left, tmp_path: Path, name: str) -> None:
    for node, path in left.paths.items():
        shutil.copytree(path, tmp_path / node)
    it = Seeded(left, tmp_path)
    where, vlsn = SEEDED[name](it)
    report = it.audited()
    assert report.exit_code == 1
    first = report.findings[0]
    assert (first.rule, first.source, first.vlsn) == (name.partition(":")[0], str(tmp_path / where), vlsn)
    others = {finding.rule for finding in report.findings} - {first.rule}
    assert others <= ({"divergence"} if name == "name-reused: a segment's" else set())


def _sections() -> Iterator[tuple[str, str]]:
    parts = re.split(r"^### `([a-z-]+)`$", PAGE.read_text(), flags=re.MULTILINE)
    return zip(parts[1::2], parts[2::2], strict=True)


def test_every_rule_is_described_with_its_cause_and_what_to_do() -> None:
    sections = dict(_sections())
    assert [rule for rule in sections if rule != Rule.PAGE] == list(RULES)  # pages are no log's: verify's alone
    for rule, text in sections.items():
        assert all(word in text for word in ("**Cause.**", "**Do.**")), rule
