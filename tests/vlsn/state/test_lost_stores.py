"""The node file and each store lost, older, or with a flipped bit, each alone: what the open answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import cast

import msgspec
import pytest

from tests.fakes.seeds import seeds
from tests.vlsn.logs import DIRECTORY, Machine, Opened, Undurable, put
from tests.vlsn.recover.crash_operations import Model, RealMachine, roll_back
from vlsn.errors import Damaged
from vlsn.ids import Vlsn
from vlsn.state.node_file import SLOT_BYTES
from vlsn.state.state_store import StateStore
from vlsn.verify.verify import verify

NODE_FILE = f"{DIRECTORY}/node.id"
PAGE = 4096


def grown(machine: Machine, *, lives: int = 3) -> dict[int, bytes]:
    """Returns a log of some terms, checkpoints and segments; what it holds."""
    held: dict[int, bytes] = {}
    for _ in range(lives):
        opened = Opened(machine)
        put(opened, held, 6, size=4000)
        opened.log.care.checkpointer.run()
        put(opened, held, 3)
        machine.kill()
    return held


def whole(machine: Machine, held: dict[int, bytes], *, take_term: bool = True) -> Opened:
    opened = Opened(machine, take_term=take_term)
    assert {vlsn: value for vlsn, value in opened.entries().items() if vlsn in held} == held
    for vlsn in range(opened.log.view.range.first, opened.log.view.range.last + 1):
        assert opened.log.view.index.at_or_before(Vlsn(vlsn)) is not None
    if take_term:
        assert opened.append(b"on").synced
    return opened


# The node file.


def test_each_flipped_bit_of_either_slot_changes_nothing() -> None:
    rng = Random(7)
    for slot in (0, 1):
        for at in [*range(0, 168, 5), *(rng.randrange(SLOT_BYTES) for _ in range(10)), SLOT_BYTES - 1]:
            machine = Machine()
            held = grown(machine, lives=1)
            before = Opened(machine, take_term=False).log.node_file.record
            machine.kill()
            machine.disk.flip_bit(NODE_FILE, slot * SLOT_BYTES + at, rng.randrange(8))
            opened = whole(machine, held, take_term=False)
            assert replace(opened.log.node_file.record, sequence=0) == replace(before, sequence=0)
            content = machine.disk.content(NODE_FILE)
            assert content[:SLOT_BYTES] == content[SLOT_BYTES:]


@pytest.mark.parametrize("how", ["lost", "both slots", "older"])
def test_without_its_node_file_a_store_is_a_new_incarnation_of_the_highest_term(how: str) -> None:
    machine = Machine()
    image = b""
    held = grown(machine, lives=1)
    image = machine.disk.content(NODE_FILE)
    held |= grown(machine)
    before = Opened(machine, take_term=False).log.node_file.record
    machine.kill()
    match how:
        case "lost":
            machine.disk.remove(NODE_FILE)
            machine.disk.sync_directory(DIRECTORY)
        case "both slots":
            machine.disk.flip_bit(NODE_FILE, 30)
            machine.disk.flip_bit(NODE_FILE, SLOT_BYTES + 30)
        case "older":
            machine.disk.write_content(NODE_FILE, image)
    opened = whole(machine, held, take_term=False)
    after = opened.log.node_file.record
    assert after.incarnation != before.incarnation
    assert after.term == before.term == 4
    aside = [name for name in machine.disk.list(DIRECTORY) if name.startswith("node.id.")]
    assert aside == {"lost": [], "both slots": ["node.id.damaged"], "older": ["node.id.old"]}[how]
    machine.kill()
    again = whole(machine, held)
    assert again.log.node_file.record.incarnation == after.incarnation
    assert again.log.view.history.last_term == 5


def without_node_file(machine: Machine) -> int:
    """Returns the term that the next open gives a store whose node file is gone."""
    machine.kill()
    machine.disk.remove(NODE_FILE)
    machine.disk.sync_directory(DIRECTORY)
    return Opened(machine, take_term=False).log.node_file.record.term


def test_after_a_clean_stop_the_term_is_still_the_logs() -> None:
    machine = Machine()
    for _ in range(3):
        opened = Opened(machine)
        opened.append(b"value")
        opened.close()
    assert without_node_file(machine) == 3


def test_an_older_node_file_is_told_after_a_clean_stop_where_no_block_is_read() -> None:
    """An open reads from the checkpoint on: only the state record says which terms lie before."""
    machine = Machine()
    images = []
    for _ in range(3):
        opened = Opened(machine)
        opened.append(b"value")
        opened.close()
        machine.kill()
        images.append(machine.disk.content(NODE_FILE))
    before = opened.log.node_file.record
    machine.disk.write_content(NODE_FILE, images[1])
    after = Opened(machine, take_term=False).log.node_file.record
    assert after.incarnation != before.incarnation
    assert after.term == before.term == 3
    assert machine.disk.exists(f"{NODE_FILE}.old")


def test_terms_of_overmarked_blocks_that_no_open_reads_any_more_count() -> None:
    machine = Machine()
    model = Model()
    opened = Undurable(machine)
    put(opened, model.held, 3)
    for _ in range(3):
        roll_back(opened, model, 4)
    opened.log.stop_sealing(Damaged("no term after the last rollback"))
    done: list[object] = []
    opened.log.rollback(Vlsn(4), lambda: done.append(1), done.append)
    opened.log.care.checkpointer.run()
    assert opened.log.view.history.last_term == 1
    assert without_node_file(machine) == 4


def test_terms_of_blocks_that_were_cut_count_at_this_open_and_at_a_later_one() -> None:
    for opens in (0, 1):
        machine = Machine()
        opened = Opened(machine)
        opened.append(b"value")
        machine.kill()
        Opened(machine)  # term 2: its entry is the last frame, and rots
        machine.kill()
        logs = [path for path in machine.disk.files(DIRECTORY) if path.endswith(".vlog")]
        path = max(path for path in logs if machine.disk.content(path)[4096:].strip(b"\0"))
        content = bytearray(machine.disk.content(path))
        end = len(content.rstrip(b"\0"))
        content[end - 1] ^= 1
        machine.disk.write_content(path, bytes(content))
        for _ in range(opens):
            assert Opened(machine, take_term=False).log.stats.cuts == 1
            machine.kill()
            assert [each for each in machine.disk.list(DIRECTORY) if ".cut-" in each]
        assert without_node_file(machine) == 2


# The stores.


@pytest.mark.parametrize("store", ["index", "state"])
@pytest.mark.parametrize("how", ["lost", "older", "much older", "unreadable"])
def test_a_store_that_is_not_of_this_time_is_made_anew(store: str, how: str) -> None:
    machine = Machine()
    path = f"{DIRECTORY}/{store}"
    held = grown(machine, lives=1)
    much_older = machine.stores.snapshot(path)
    held |= grown(machine, lives=2)
    older = machine.stores.snapshot(path)
    held |= grown(machine, lives=1)
    before = Opened(machine, take_term=False)
    runs, record = before.log.view.history.term_runs, before.log.node_file.record
    machine.kill()
    match how:
        case "lost":
            machine.stores.contents.pop(path)
        case "older":
            machine.stores.restore(path, older)
        case "much older":
            machine.stores.restore(path, much_older)
        case "unreadable":
            machine.stores.unreadable.add(path)
    opened = whole(machine, held, take_term=False)
    # A state that is one checkpoint older than the index is what a crash between the two leaves, too.
    assert opened.notes or (store, how) == ("state", "older")
    assert opened.log.view.history.term_runs == runs
    assert replace(opened.log.node_file.record, sequence=0) == replace(record, sequence=0)
    assert (f"{path}.aside-1" in machine.stores.contents) == (how == "unreadable")
    opened.take_term()
    opened.append(b"on")
    opened.log.care.checkpointer.run()
    opened.close()
    assert verify(machine.disk, machine.stores, DIRECTORY).ok
    assert not Opened(machine, take_term=False).notes


def test_a_state_of_another_log_is_set_aside() -> None:
    other, machine = Machine(9), Machine()
    grown(other, lives=4)
    held = grown(machine, lives=1)
    foreign = StateStore(other.stores.open(f"{DIRECTORY}/state", map_bytes=1))
    record, checkpoint = foreign.record(), foreign.checkpoint()
    assert record is not None
    assert checkpoint is not None
    mine = StateStore(machine.stores.open(f"{DIRECTORY}/state", map_bytes=1))
    own = mine.checkpoint()
    assert own is not None
    mine.save(checkpoint=own, record=record)  # of VLSNs that this log does not have
    mine.close()
    opened = whole(machine, held)
    assert f"{DIRECTORY}/state.aside-1" in machine.stores.contents
    assert [run.term for run in opened.log.view.history.term_runs] == [1, 2]


@pytest.mark.parametrize("key", [b"checkpoint", b"record", b"idle_end"])
def test_a_flipped_bit_in_a_value_of_the_state_sets_it_aside(key: bytes) -> None:
    for bit in range(0, 400, 37):
        machine = Machine()
        held: dict[int, bytes] = {}
        opened = Opened(machine)
        put(opened, held, 5)
        opened.log.care.checkpointer.run()
        for _ in range(2):
            machine.clock.advance(2.0)
            opened.log.tick()
        machine.kill()
        machine.stores.corrupt(f"{DIRECTORY}/state", key, bit=bit)
        opened = whole(machine, held)
        assert f"{DIRECTORY}/state.aside-1" in machine.stores.contents


def flips(path: Path, rng: Random) -> Iterator[tuple[int, int]]:
    """Yields places and bits in every page of a data file. They are mostly where it is not zero, and in the meta pages'
    fields."""
    for at in range(0, path.stat().st_size, PAGE):
        page = path.read_bytes()[at : at + PAGE]
        used = [offset for offset, byte in enumerate(page) if byte] or [0]
        for place in rng.choices(range(160), k=6) if at < 2 * PAGE else rng.choices(used, k=2):
            yield at + place, rng.randrange(8)


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("store", ["index", "state"])
def test_a_flipped_bit_in_any_page_of_lmdb_costs_a_rebuild_at_most(store: str, seed: int, tmp_path: Path) -> None:
    """Real LMDB pages are flipped, the meta pages' fields most of all. A start that LMDB ends would end this test."""
    rng = Random(seed)
    machine = cast("Machine", RealMachine(str(tmp_path / "log"), seed))
    held = grown(machine)
    path = tmp_path / "log" / store / "data.mdb"
    asides = 0
    for at, bit in flips(path, rng):
        image = bytearray(path.read_bytes())
        if at >= len(image):
            continue  # set aside meanwhile: the new one is smaller
        image[at] ^= 1 << bit
        path.write_bytes(image)
        opened = whole(machine, held)
        asides += any("set aside" in note or "built anew" in note for note in opened.notes)
        held = opened.entries()
        opened.log.care.checkpointer.run()
        opened.close()
        machine.kill()
    print(f"{store}: {asides} flips were answered by a rebuild")
    assert asides


@pytest.mark.parametrize("term", [1, 9])
def test_a_state_record_that_the_log_does_not_follow_on_is_set_aside(term: int) -> None:
    """The record is of a VLSN before the place where reading begins, or of a term above the next."""
    machine = Machine()
    held = grown(machine)
    before = Opened(machine, take_term=False).log.node_file.record
    machine.kill()
    state = StateStore(machine.stores.open(f"{DIRECTORY}/state", map_bytes=1))
    record, checkpoint = state.record(), state.checkpoint()
    assert record is not None
    assert checkpoint is not None
    vlsn = record.vlsn if term > 1 else Vlsn(2)
    state.save(checkpoint=checkpoint, record=msgspec.structs.replace(record, vlsn=vlsn, term_runs=[(term, 1, vlsn)]))
    state.close()
    opened = whole(machine, held)
    assert opened.log.node_file.record.incarnation == before.incarnation
    assert f"{DIRECTORY}/state.aside-1" in machine.stores.contents
    assert [run.term for run in opened.log.view.history.term_runs][:3] == [1, 2, 3]
