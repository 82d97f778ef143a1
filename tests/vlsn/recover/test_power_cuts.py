"""A power cut in a group's sync, in every combination of lost sectors, and the open after it.

Whatever is kept, what was acknowledged is there, nothing is damage, the vote floor is in the node file before the
log is shorter, what was cut lies aside and ``verify`` names it, and the log goes on in another segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import pytest

from tests.vlsn.logs import DIRECTORY, SMALL, Machine, Opened, Waiting
from tests.vlsn.recover.crash_operations import room
from vlsn.ids import Vlsn, lsn_file
from vlsn.segments.cut_bytes import parse_cut_name
from vlsn.state.node_file import NodeRecord
from vlsn.state.node_file import read as read_node_file
from vlsn.state.options import Durability
from vlsn.verify.verify import verify
from vlsnlog.testing.fakes.disk import Call, StopHere

OPTIONS = replace(SMALL, block_bytes_max=700)
SECTORS_MAX = 8
"""More would be more combinations than a test has time for."""


class Burst(Opened):
    """Appends ``next`` from within the callback of a sync: all of them but the first are one group of blocks."""

    def __init__(self, machine: Machine) -> None:
        self.next: list[bytes] = []
        self.sent: list[Waiting] = []
        super().__init__(machine, OPTIONS)

    def append(self, *values: bytes, durability: Durability = Durability.SYNC) -> Waiting:
        pending = super().append(*values, durability=durability)
        self.sent.append(pending)
        return pending

    def synced(self, last_vlsn: Vlsn) -> None:
        super().synced(last_vlsn)
        values, self.next = self.next, []
        for value in values:
            self.append(value)


def stopped_in_a_sync(number: int, *, roll: bool) -> tuple[Machine, dict[int, bytes], list[tuple[str, int]]]:
    """Returns a machine stopped in the ``number``th sync of a segment after a burst began. With it come what was
    acknowledged by then, and the sectors that a power cut may lose."""
    machine = Machine(3)
    opened = Burst(machine)
    for value in range(3):
        opened.append(b"%d," % value * 200)
    while roll and room(opened) > 1600:
        opened.append(b"," * (3000 if room(opened) > 6000 else 300))
    opened.next = [b"%d;" % value * 290 for value in range(5)]
    seen = 0

    def this_sync(call: Call) -> bool:
        nonlocal seen
        seen += call.name == "sync" and call.path.endswith(".vlog")
        return seen == number

    machine.disk.stop_at(this_sync)
    with pytest.raises(StopHere):
        opened.append(b"first")
    held = {pending.first: pending.values[0] for pending in opened.sent if pending.synced}
    disk = machine.disk
    lost = [
        (path, sector)
        for path in disk.files(DIRECTORY)
        for sector in disk.unsynced_sectors(path)
        if sector_of(disk.durable_content(path), sector) != sector_of(disk.content(path), sector)
    ]
    return machine, held, lost


def sector_of(content: bytes, number: int) -> bytes:
    return content[number * 512 : number * 512 + 512].ljust(512, b"\0")


def combinations_of(sectors: list[tuple[str, int]]) -> Iterator[dict[str, set[int]]]:
    for size in range(len(sectors) + 1):
        for chosen in combinations(sectors, size):
            kept: dict[str, set[int]] = {}
            for path, sector in chosen:
                kept.setdefault(path, set()).add(sector)
            yield kept


def node_record(machine: Machine) -> NodeRecord:
    return read_node_file(machine.disk, f"{DIRECTORY}/node.id")


def check_cut(machine: Machine, opened: Opened) -> None:
    """Checks what a cut leaves behind."""
    report = verify(machine.disk, machine.stores, DIRECTORY)
    assert not report.findings
    aside = [name for name in machine.disk.list(DIRECTORY) if parse_cut_name(name)]
    assert len(aside) == opened.log.stats.cuts
    assert sorted(kept.file for kept in report.kept_aside) == aside
    record = node_record(machine)
    for kept in report.kept_aside:
        assert record.floor_vlsn >= kept.last, "cut without a floor"
    assert bool(record.floor_vlsn) == bool(aside)


@pytest.mark.parametrize(
    ("number", "roll"), [(1, False), (2, False), (3, False), (1, True), (2, True), (3, True), (4, True)]
)
def test_every_combination_of_sectors_opens(number: int, roll: bool) -> None:
    machine, _, sectors = stopped_in_a_sync(number, roll=roll)
    assert len(sectors) <= SECTORS_MAX, "too many to go through: make the group smaller"
    cuts = 0
    for kept in combinations_of(sectors):
        machine, held, _ = stopped_in_a_sync(number, roll=roll)
        machine.disk.power_cut_keeping(kept)
        machine.stores.abandon()
        before = node_record(machine)
        opened = Opened(machine, OPTIONS, take_term=False)
        end = opened.log.view.range.last
        assert {vlsn: value for vlsn, value in opened.entries().items() if vlsn in held} == held, kept
        assert node_record(machine).incarnation == before.incarnation
        last_number = max(opened.log.view.segments(), default=0)
        machine.kill()
        check_cut(machine, opened)
        again = Opened(machine, OPTIONS)  # cuts the same again
        assert again.log.stats.cuts == opened.log.stats.cuts or not again.log.stats.cuts
        cuts += opened.log.stats.cuts
        more = again.append(b"more")
        assert (more.synced, more.first) == (True, end + 2), kept
        mapping = again.log.view.index.at_or_before(Vlsn(more.first))
        assert mapping is not None
        assert lsn_file(mapping[1]) > last_number, "appended behind a cut"
        machine.kill()
        assert not verify(machine.disk, machine.stores, DIRECTORY).findings
    print(f"{2 ** len(sectors)} combinations of {sectors}, {cuts} of them cut")


def test_the_floor_is_synced_before_anything_is_cut() -> None:
    """The open is stopped before each disk call: cut bytes are aside only with the floor stored."""
    number = 0
    while True:
        number += 1
        machine, _, sectors = stopped_in_a_sync(3, roll=False)
        kept = {path: {sector for each, sector in sectors[1:] if each == path} for path, _ in sectors}
        machine.disk.power_cut_keeping(kept)
        machine.stores.abandon()
        begun = len(machine.disk.calls)
        machine.disk.stop_at(begun + number)
        try:
            Opened(machine, OPTIONS, take_term=False)
        except StopHere:
            machine.power_cut()
            if any(parse_cut_name(name) for name in machine.disk.list(DIRECTORY)):
                assert node_record(machine).floor_vlsn
            continue
        assert number > 30
        return
