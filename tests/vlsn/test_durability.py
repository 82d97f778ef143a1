"""Durability of a group: its names, its order, its codes."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import pytest

from vlsn.durability import (
    SYNCED,
    Durability,
    GroupDurability,
    answered_code,
    answered_of,
    asked_code,
    asked_of,
    group_durability,
    weakest,
)
from vlsn.errors import BadArgument

ALL = [group_durability(f"{local.name},{replica.name}".lower()) for local, replica in product(Durability, Durability)]


def test_one_name_is_for_both_and_two_are_the_masters_and_the_replicas() -> None:
    assert group_durability("write_no_sync") == GroupDurability("write_no_sync", "write_no_sync")
    assert group_durability("sync,no_sync") == GroupDurability("sync", "no_sync")
    assert group_durability(Durability.NO_SYNC) == GroupDurability("no_sync", "no_sync")
    assert group_durability("sync") is SYNCED and not SYNCED.lower
    for each in ALL:
        assert group_durability(str(each)) is each
        assert group_durability(GroupDurability(each.local, each.replica)) is each, "there is one object of each"
        assert each.lower is (each is not SYNCED)
        assert group_durability(msgspec.json.decode(msgspec.json.encode(each), type=GroupDurability)) is each


@pytest.mark.parametrize(
    "wrong", ["", ",", "SYNC", "sync,", "sync,sync,sync", "fsync", "sync no_sync", 2, None, b"sync"]
)
def test_what_is_no_durability_is_refused(wrong: Any) -> None:
    with pytest.raises(BadArgument, match=r"durability: .* is not one of sync, write_no_sync, no_sync"):
        group_durability(wrong)


def test_codes_tell_every_durability_apart_and_zero_is_the_default() -> None:
    assert asked_code(None) == 0 and asked_of(0) is None
    assert answered_code(SYNCED) == 0
    assert len({asked_code(each) for each in ALL} | {0}) == len(ALL) + 1
    assert len({answered_code(each) for each in ALL}) == len(ALL)
    for each in ALL:
        assert asked_of(asked_code(each)) is each
        assert answered_of(answered_code(each)) is each
    known = {asked_code(each) for each in ALL}
    for code in set(range(1, 1 << 16)) - known:
        with pytest.raises(ValueError, match="Durability"):
            asked_of(code)
    for code in set(range(1, 1 << 7)) - {answered_code(each) for each in ALL}:
        with pytest.raises(ValueError, match="Durability"):
            answered_of(code)


def test_one_exceeds_another_where_anybody_would_have_to_do_more() -> None:
    for one, other in product(ALL, ALL):
        more = [a > b for a, b in zip(one.levels, other.levels, strict=True)]
        assert one.exceeds(other) is any(more)
        least = weakest([one, other])
        assert not least.exceeds(one) and not least.exceeds(other)
        assert least.levels == tuple(map(min, zip(one.levels, other.levels, strict=True)))
