"""The key file: who may read it, how it is made by one of two, and how keys are exchanged."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl.auth import group_key
from repl.auth.group_key import KEYS_MAX, GroupKeys, Key
from tests.fakes.random import SeededRandom
from vlsn.errors import BadArgument
from vlsnlog.testing.fakes.disk import Call, FakeDisk, StopHere

PATH = "/d/group.key"
RANDOM = SeededRandom(7)
keys = st.lists(
    st.builds(Key, st.from_regex(r"[a-z0-9]{1,16}", fullmatch=True), st.binary(min_size=32, max_size=32)),
    min_size=1,
    max_size=KEYS_MAX,
    unique_by=lambda key: key.id,
).map(lambda found: GroupKeys(tuple(found)))


@given(keys)
def test_keys_are_read_as_they_were_written(made: GroupKeys) -> None:
    disk = FakeDisk()
    disk.make_directory("/d")
    group_key.replace(disk, PATH, made, RANDOM)
    assert group_key.read(disk, PATH) == made
    assert disk.list("/d") == ["group.key"]


@given(keys, st.binary(max_size=200), st.integers(0, 700))
def test_any_bytes_are_keys_or_a_bad_argument_without_a_secret(made: GroupKeys, junk: bytes, at: int) -> None:
    data = group_key.encode(made)
    changed = data[:at] + junk + data[at + len(junk) :]
    said = ""
    try:
        read = group_key.decode(changed, PATH)
    except BadArgument as error:
        said = str(error)
    else:
        assert 1 <= len(read.keys) <= KEYS_MAX and len(set(read.ids)) == len(read.ids)
    assert not any(key.secret.hex() in said for key in made.keys)


def test_a_key_is_never_shown() -> None:
    key = group_key.new_key(RANDOM)
    shown = f"{key!r} {GroupKeys((key,))!r}"
    assert key.id in shown
    assert key.secret.hex() not in shown and repr(key.secret) not in shown


@pytest.mark.parametrize(("mode", "owner", "good"), [
    (0o600, 1000, True), (0o400, 1000, True), (0o640, 0, True), (0o600, 0, True),
    (0o640, 1000, False), (0o644, 1000, False), (0o644, 0, False), (0o660, 0, False), (0o601, 1000, False),
    (0o700, 1000, False),
])  # fmt: skip
def test_a_key_that_others_can_use_is_refused(mode: int, owner: int, good: bool) -> None:
    disk = FakeDisk()
    disk.make_directory("/d")
    disk.write_content(PATH, group_key.encode(GroupKeys((group_key.new_key(RANDOM),))), mode=mode)
    disk._inode(PATH).owner = owner
    if good:
        group_key.read(disk, PATH)
        return
    with pytest.raises(BadArgument, match=f"mode {mode:04o}.*chmod 600"):
        group_key.read(disk, PATH)


@pytest.mark.parametrize(("mode", "owner", "group"), [
    (0o640, 0, 7), (0o600, 0, 7), (0o400, 0, 0), (0o600, 1000, 1000), (0o400, 1000, 7),
])  # fmt: skip
def test_an_exchange_keeps_mode_owner_and_group(mode: int, owner: int, group: int) -> None:
    disk = kept(mode, owner, group)
    disk.user = 0
    widest = 0

    def look(call: Call) -> None:
        nonlocal widest
        temporary = next((name for name in disk.list("/d") if name.endswith(".tmp")), None)
        if temporary is not None and call.name != "list":
            widest |= disk._inode(f"/d/{temporary}").mode

    disk.hook = lambda call: look(call) if call.name in ("write", "sync", "rename") else None
    group_key.replace(disk, PATH, GroupKeys((group_key.new_key(RANDOM),)), RANDOM)
    disk.hook = None
    assert disk.open(PATH).protection() == (mode, owner, group)
    assert widest == mode
    assert disk.list("/d") == ["group.key"]


def test_an_exchange_by_another_user_changes_nothing() -> None:
    disk = kept(0o640, 0, 7)
    before = group_key.read(disk, PATH)
    with pytest.raises(BadArgument, match="belongs to user 0"):
        group_key.replace(disk, PATH, GroupKeys((group_key.new_key(RANDOM),)), RANDOM)
    assert group_key.read(disk, PATH) == before
    assert disk.open(PATH).protection() == (0o640, 0, 7)
    assert disk.list("/d") == ["group.key"]


def test_a_group_that_the_owner_may_not_set_is_left_if_it_may_do_nothing() -> None:
    disk = kept(0o600, 1000, 7)
    group_key.replace(disk, PATH, GroupKeys((group_key.new_key(RANDOM),)), RANDOM)
    assert disk.open(PATH).protection() == (0o600, 1000, 1000)


def test_an_exchange_refuses_a_file_that_others_can_use() -> None:
    disk = kept(0o644, 0, 0)
    with pytest.raises(BadArgument, match="mode 0644"):
        group_key.replace(disk, PATH, GroupKeys((group_key.new_key(RANDOM),)), RANDOM)
    assert disk.list("/d") == ["group.key"]


def kept(mode: int, owner: int, group: int) -> FakeDisk:
    disk = FakeDisk()
    disk.make_directory("/d")
    disk.write_content(PATH, group_key.encode(GroupKeys((group_key.new_key(RANDOM),))), mode=mode)
    inode = disk._inode(PATH)
    inode.owner, inode.group = owner, group
    return disk


def test_a_missing_key_names_the_command_that_makes_one() -> None:
    with pytest.raises(BadArgument, match=f"no file {PATH}.*vlsnlog key create FILE"):
        group_key.read(FakeDisk(), PATH)


def test_of_two_who_make_the_key_the_second_reads_the_firsts() -> None:
    disk = FakeDisk()
    found: list[GroupKeys] = []

    def other_first(call: Call) -> None:
        if call.name == "link" and not found:
            found.append(GroupKeys(()))  # this one's own link comes here, too
            found[0] = group_key.make(disk, PATH, SeededRandom(8))

    disk.hook = other_first
    assert group_key.make(disk, PATH, SeededRandom(9)) == found[0] == group_key.read(disk, PATH)
    assert disk.list("/d") == ["group.key"]
    assert disk.open(PATH).protection()[0] == 0o600


def test_a_key_that_is_made_is_there_whole_or_not_at_all() -> None:
    """Wherever the process ends, or the power: the name is there with a whole key, or it is made the next time."""
    calls = _steps(lambda disk: group_key.make(disk, PATH, SeededRandom(1)))
    for number in range(1, calls + 1):
        disk = FakeDisk()
        disk.make_directory("/d")
        disk.settle()
        disk.stop_at(len(disk.calls) + number, moment="during")
        with pytest.raises(StopHere):
            group_key.make(disk, PATH, SeededRandom(1))
        disk.power_cut(Random(number), tear=True)
        made = group_key.make(disk, PATH, SeededRandom(2))
        disk.power_cut(Random(number), tear=True)
        assert group_key.read(disk, PATH) == made


def test_a_key_that_is_exchanged_is_the_old_one_or_the_new_one() -> None:
    old, new = (GroupKeys((group_key.new_key(RANDOM),)) for _ in range(2))

    def exchanged(disk: FakeDisk) -> None:
        group_key.replace(disk, PATH, new, RANDOM)

    for number in range(1, _steps(exchanged) + 1):
        disk = FakeDisk()
        disk.make_directory("/d")
        disk.settle()
        disk.write_content(PATH, group_key.encode(old), mode=0o600)
        begun = len(disk.calls)
        disk.stop_at(begun + number, moment="after")
        with pytest.raises(StopHere):
            exchanged(disk)
        disk.power_cut(Random(number), tear=True)
        assert group_key.read(disk, PATH) in (old, new)


def _steps(act: Callable[[FakeDisk], object]) -> int:
    disk = FakeDisk()
    disk.make_directory("/d")
    before = len(disk.calls)
    act(disk)
    return len(disk.calls) - before


def test_keys_are_exchanged_in_three_steps() -> None:
    one, two = group_key.new_key(RANDOM, "one"), group_key.new_key(RANDOM, "two")
    both = GroupKeys((one,)).with_key(two)
    assert both.signing is one and both.ids == ("one", "two")
    turned = both.signing_with("two")
    assert turned.signing is two and turned.ids == ("two", "one")
    assert turned.without("one") == GroupKeys((two,))
    with pytest.raises(BadArgument, match="in the file already"):
        both.with_key(two)
    for id in ("one", "x"):
        with pytest.raises(BadArgument):
            both.without(id)
    with pytest.raises(BadArgument):
        both.signing_with("three")
    full = GroupKeys(tuple(group_key.new_key(RANDOM, f"k{n}") for n in range(KEYS_MAX)))
    with pytest.raises(BadArgument, match="drop one first"):
        full.with_key(one)


@pytest.mark.parametrize("id", ["", "A", "a b", "a" * 17, "ä", "a\n"])
def test_an_id_is_of_few_characters(id: str) -> None:
    with pytest.raises(BadArgument):
        group_key.check_id(id)
