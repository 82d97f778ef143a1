"""Pages as a person is shown them: which records count, which are acknowledged, and what ``verify`` finds of them."""

from __future__ import annotations

from random import Random

from tests.vlsn.logs import DIRECTORY, Machine
from tests.vlsn.pages.paging import Destination, Pager
from tests.vlsn.pages.test_paging import ALL, block_end, filled
from vlsn.format.vlsn_set import VlsnSet
from vlsn.pages.page import HEADER_BYTES
from vlsn.pages.record import HEAD_BYTES
from vlsn.state.acks import Acked
from vlsn.verify.pages import PageLine, page_faults, page_lines
from vlsn.verify.segment_chain import Stated, read_stated
from vlsn.verify.verify import verify


def paged(machine: Machine) -> tuple[Pager, int]:
    opened, _ = filled(machine, Random(3))
    last = opened.log.view.range.last
    pager = Pager(opened)
    pager.page([Destination(ALL)], block_end(opened, last // 2))
    return pager, last


def closed(pager: Pager) -> None:
    pager.manager.close()
    pager.opened.close()


def stated_of(machine: Machine, acked: VlsnSet | None = None) -> Stated:
    stated = read_stated(machine.stores, DIRECTORY)
    assert stated.record is not None
    if acked is not None:
        stated.record.acks.tables[ALL] = Acked(1, acked).record()  # type: ignore[arg-type]
    return stated


def lines(machine: Machine, stated: Stated) -> tuple[list[PageLine], list[PageLine]]:
    found = list(page_lines(machine.disk, DIRECTORY, stated))
    return [line for line in found if not line.record], [line for line in found if line.record]


def test_records_that_are_acknowledged_say_so_and_pages_that_are_done() -> None:
    machine = Machine(3)
    pager, _ = paged(machine)
    rows = dict(pager.manager.stores[ALL].pages)
    closed(pager)
    pages, records = lines(machine, stated_of(machine))
    assert not any(line.marks for line in [*pages, *records])
    assert [(line.first, line.last, line.count) for line in pages] == [
        (row.first, row.last, row.count) for row in rows.values()
    ]
    upto = rows[2].first
    pages, records = lines(machine, stated_of(machine, VlsnSet.between(1, upto)))
    assert pages[0].marks == ["COMPLETE"] and not pages[1].marks
    assert all(line.marks == ["ACK"] for line in records if line.last <= upto)
    assert [line.marks for line in records if line.first <= upto < line.last] == [
        [f"ACK {line.acked}/{line.count}"] for line in records if line.first <= upto < line.last
    ]


def test_what_a_pass_wrote_that_never_counted_is_shown_as_such() -> None:
    machine = Machine(3)
    pager, last = paged(machine)
    counted = sum(row.count for row in pager.manager.stores[ALL].pages.values())
    table = machine.stores.contents[f"{DIRECTORY}/state"].copy()
    pager.page([Destination(ALL)], last)
    closed(pager)
    machine.stores.contents[f"{DIRECTORY}/state"] = table
    pages, records = lines(machine, read_stated(machine.stores, DIRECTORY))
    unfounded = [line for line in records if "TX_NOT_FOUND" in line.marks]
    assert unfounded
    assert sum(line.count for line in records if not line.marks) == counted == sum(line.count for line in pages)


def test_verify_names_a_page_that_does_not_read_back() -> None:
    machine = Machine(3)
    pager, _ = paged(machine)
    store = pager.manager.stores[ALL]
    closed(pager)
    assert verify(machine.disk, machine.stores, DIRECTORY).ok
    machine.disk.flip_bit(store.path(2), HEADER_BYTES + HEAD_BYTES + 9)
    machine.disk.remove(store.path(1))
    report = verify(machine.disk, machine.stores, DIRECTORY)
    assert [(each.rule, each.file, each.offset) for each in report.findings] == [
        ("page", f"pages/{ALL}/000000001.page", 0),
        ("page", f"pages/{ALL}/000000002.page", HEADER_BYTES),
    ]
    pages, _ = lines(machine, read_stated(machine.stores, DIRECTORY))
    assert pages[0].marks == ["DAMAGED"] and pages[0].detail
    assert list(page_faults(machine.disk, DIRECTORY, Stated())) == []
