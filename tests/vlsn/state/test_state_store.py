"""The ``state`` store: what is saved comes back, together or not at all."""

from __future__ import annotations

import pytest

from vlsn.errors import Damaged, LogFailed
from vlsn.format.records import GroupEntry, Member
from vlsn.ids import Lsn, Term, Vlsn
from vlsn.state.state_store import (
    CHECKPOINT_KEY,
    IDLE_END_KEY,
    RECORD_KEY,
    Checkpoint,
    IdleEnd,
    StateRecord,
    StateStore,
)
from vlsnlog.testing.fakes.kv import FakeStores

PATH = "state"
GROUP = GroupEntry("orders", [Member("n1", "http://127.0.0.1:7701", "00000000000000a1")], 0)
CHECKPOINT = Checkpoint(
    id=3,
    start_lsn=Lsn(1 << 32 | 8192),
    end_lsn=Lsn(0xFFFF_FFFF_FFFF_FFFF),
    scan_lsn=Lsn(1 << 32 | 4096),
    first_vlsn=Vlsn(1),
    last_vlsn=Vlsn((1 << 63) - 1),
    dtvlsn=Vlsn(90),
    clean=True,
    time_us=1_700_000_000_000_000,
)
RECORD = StateRecord(vlsn=Vlsn(90), group=GROUP, group_vlsn=Vlsn(2), term_runs=[(1, 1, 40), (2, 41, 90)])
IDLE_END = IdleEnd(lsn=Lsn(1 << 32 | 9000), term=Term(2), vlsn=Vlsn(95))


@pytest.fixture
def stores() -> FakeStores:
    return FakeStores()


def opened(stores: FakeStores) -> StateStore:
    stores.abandon()
    return StateStore(stores.open(PATH, map_bytes=1 << 20))


def test_what_is_saved_comes_back_in_one_transaction(stores: FakeStores) -> None:
    state = opened(stores)
    assert (state.checkpoint(), state.record(), state.idle_end()) == (None, None, None)
    state.save(checkpoint=CHECKPOINT, record=RECORD, idle_end=IDLE_END)
    assert stores.writes == 1
    state = opened(stores)
    assert (state.checkpoint(), state.record(), state.idle_end()) == (CHECKPOINT, RECORD, IDLE_END)


def test_what_is_not_given_stays(stores: FakeStores) -> None:
    state = opened(stores)
    state.save(checkpoint=CHECKPOINT, record=RECORD)
    state.save(idle_end=IDLE_END)
    later = StateRecord(vlsn=Vlsn(95), trimmed_to=Vlsn(40))
    state.save(record=later)
    assert (state.checkpoint(), state.record(), state.idle_end()) == (CHECKPOINT, later, IDLE_END)


def test_a_save_that_fails_changes_nothing(stores: FakeStores) -> None:
    state = opened(stores)
    state.save(checkpoint=CHECKPOINT)
    stores.fail_writes_after = stores.writes
    with pytest.raises(LogFailed):
        state.save(checkpoint=None, record=RECORD, idle_end=IDLE_END)
    assert (state.checkpoint(), state.record(), state.idle_end()) == (CHECKPOINT, None, None)


@pytest.mark.parametrize("key", [CHECKPOINT_KEY, RECORD_KEY, IDLE_END_KEY])
@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b"\xff", b'{"id":"x"}'])
def test_what_is_no_record_is_damage(stores: FakeStores, key: bytes, value: bytes) -> None:
    state = opened(stores)
    stores.contents[PATH].put(key, value)
    read = {CHECKPOINT_KEY: state.checkpoint, RECORD_KEY: state.record, IDLE_END_KEY: state.idle_end}[key]
    with pytest.raises(Damaged, match=key.decode()):
        read()


def test_a_record_whose_text_is_no_utf_8_is_damage(stores: FakeStores) -> None:
    """Under a right checksum, and also where the level alone is looked for."""
    state = opened(stores)
    for value in (b'{"vlsn":1,"founding":"\xe8"}', b'{"founding":"\xe8","level":"\xe8"}'):
        stores.contents[PATH].put(RECORD_KEY, value)
        with pytest.raises(Damaged, match="record"):
            state.record()


def test_a_flipped_bit_is_damage(stores: FakeStores) -> None:
    state = opened(stores)
    state.save(checkpoint=CHECKPOINT)
    stores.corrupt(PATH, CHECKPOINT_KEY, bit=77)
    with pytest.raises(Damaged):
        state.checkpoint()


def test_fields_of_a_later_version_are_passed_over(stores: FakeStores) -> None:
    state = opened(stores)
    stores.contents[PATH].put(IDLE_END_KEY, b'{"lsn":1,"term":2,"vlsn":3,"mood":"quiet"}')
    assert state.idle_end() == IdleEnd(lsn=Lsn(1), term=Term(2), vlsn=Vlsn(3))
