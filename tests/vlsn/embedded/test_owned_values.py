"""Values that a caller gives an embedded log: taken as at the call, or refused there."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from vlsn import Log
from vlsn.embedded.owned_values import owned, owned_keys, owned_values
from vlsn.errors import BadArgument, BadBody, TooLarge, VlsnLogError
from vlsn.limits import BATCH_ENTRIES_MAX, ENTRY_BYTES_MAX
from vlsn.state.options import Durability, LogOptions

SMALL = LogOptions(segment_bytes=4 << 20)
BOUND_S = 20.0


class Lying(bytes):
    """Its methods say other things than its bytes."""

    def __len__(self) -> int:
        return 1 << 40

    def __iter__(self) -> Iterator[int]:
        raise RuntimeError("not this one")

    def __bytes__(self) -> bytes:
        return b"something else"


def failing() -> Iterator[bytes]:
    yield b"first"
    raise RuntimeError("of the caller's own")


def told(call: Callable[[], object]) -> object:
    """Returns what ``call`` gave or raised, within ``BOUND_S``."""
    answers: list[object] = []

    def run() -> None:
        try:
            answers.append(call())
        except Exception as error:
            answers.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(BOUND_S)
    assert answers, "the call waits for ever"
    return answers[0]


WRONG: list[tuple[str, dict[str, Any], type[Exception]]] = [
    ("text", {"values": "text"}, TypeError),
    ("no text", {"values": ""}, TypeError),
    ("texts", {"values": ["a", "b"]}, TypeError),
    ("one text among many", {"values": [b"a", "b"]}, TypeError),
    ("numbers", {"values": [1, 2]}, TypeError),
    ("a number", {"values": 7}, TypeError),
    ("nothing", {"values": None}, TypeError),
    ("None among many", {"values": [b"a", None]}, TypeError),
    ("lists", {"values": [[b"a"], [b"b"]]}, TypeError),
    ("an array", {"values": [array("i", [1, 2])]}, TypeError),
    ("a generator that raises", {"values": failing()}, RuntimeError),
    ("without end", {"values": repeat(b"x")}, TooLarge),
    ("no values", {"values": []}, BadBody),
    ("a text for a key", {"values": [b"a"], "keys": ["k"]}, TypeError),
    ("an empty text for a key", {"values": [b"a"], "keys": [""]}, TypeError),
    ("zero for a key", {"values": [b"a"], "keys": [0]}, TypeError),
    ("a number for a key", {"values": [b"a"], "keys": [5]}, TypeError),
    ("one key for all", {"values": [b"a"], "keys": b"k"}, TypeError),
    ("a text for keys", {"values": [b"a"], "keys": "k"}, TypeError),
    ("a number for keys", {"values": [b"a"], "keys": 3}, TypeError),
    ("too few keys", {"values": [b"a", b"b"], "keys": [b"k"]}, BadBody),
    ("no keys", {"values": [b"a"], "keys": []}, BadBody),
    ("a text for the key", {"values": b"a", "key": "k"}, TypeError),
    ("a number for the key", {"values": b"a", "key": 5}, TypeError),
    ("a key of many", {"values": [b"a"], "key": b"k"}, TypeError),
    ("a key beside keys", {"values": b"a", "key": b"k", "keys": [b"k"]}, TypeError),
    ("a large buffer", {"values": bytearray(ENTRY_BYTES_MAX + 1)}, TooLarge),
    ("too many", {"values": [b""] * (BATCH_ENTRIES_MAX + 1)}, TooLarge),
    ("a durability that there is not", {"values": b"a", "durability": 3}, BadArgument),
    ("a text for a durability", {"values": b"a", "durability": "SYNC"}, BadArgument),
]


@pytest.mark.parametrize(("given", "error"), [pytest.param(given, error, id=name) for name, given, error in WRONG])
def test_what_is_wrong_is_refused_at_the_call_and_the_log_goes_on(
    tmp_path: Path, given: dict[str, Any], error: type[Exception]
) -> None:
    log = Log.open(tmp_path / "log", SMALL)
    try:
        assert isinstance(told(lambda: log.append(**given)), error)
        assert told(lambda: log.append(b"after it")) == (2, 2)
    finally:
        log.close()


RIGHT: list[tuple[str, dict[str, Any], list[tuple[bytes | None, bytes]]]] = [
    ("a bytearray", {"values": bytearray(b"ab")}, [(None, b"ab")]),
    ("a view", {"values": memoryview(b"ab")}, [(None, b"ab")]),
    ("every second byte", {"values": memoryview(b"abcd")[::2]}, [(None, b"ac")]),
    ("a view of integers", {"values": memoryview(array("H", [0x6261]))}, [(None, b"ab")]),
    ("a class of its own", {"values": Lying(b"ab")}, [(None, b"ab")]),
    ("many of all", {"values": [b"a", bytearray(b"b"), memoryview(b"c"), Lying(b"d")]},
     [(None, b"a"), (None, b"b"), (None, b"c"), (None, b"d")]),
    ("a tuple", {"values": (b"a", b"b")}, [(None, b"a"), (None, b"b")]),
    ("an iterator", {"values": iter([b"a"]), "keys": iter([b"k"])}, [(b"k", b"a")]),
    ("keys of all kinds", {"values": [b"a"] * 4, "keys": [None, b"", bytearray(b"k"), Lying(b"l")]},
     [(None, b"a"), (None, b"a"), (b"k", b"a"), (b"l", b"a")]),
    ("a key", {"values": b"a", "key": b"k"}, [(b"k", b"a")]),
    ("a key of its own class", {"values": bytearray(b"a"), "key": Lying(b"k")}, [(b"k", b"a")]),
    ("an empty key", {"values": b"a", "key": b""}, [(None, b"a")]),
    ("a durability's number", {"values": b"a", "durability": 2}, [(None, b"a")]),
]  # fmt: skip


@pytest.mark.parametrize(("given", "kept"), [pytest.param(given, kept, id=name) for name, given, kept in RIGHT])
def test_what_is_bytes_by_another_name_is_kept_as_its_bytes(
    tmp_path: Path, given: dict[str, Any], kept: list[tuple[bytes | None, bytes]]
) -> None:
    with Log.open(tmp_path / "log", SMALL) as log:
        assert told(lambda: log.append(**given)) == (2, 1 + len(kept))
        assert [(entry.key, entry.value) for entry in log.read()] == kept


def test_what_changes_after_the_call_is_kept_as_it_was(tmp_path: Path) -> None:
    """A buffer and the lists themselves, while the append still waits in the queue."""
    with Log.open(tmp_path / "log", LogOptions(segment_bytes=4 << 20, flush_interval_s=60.0)) as log:
        value, values, keys = bytearray(b"one"), [bytearray(b"two"), bytearray(b"three")], [bytearray(b"k"), None]
        log.append(value, durability=Durability.NO_SYNC)
        log.append(values, keys=keys, durability=Durability.NO_SYNC)
        value[:] = b"XXXXXX"
        values[0][:] = b"YYYYYY"
        values.pop()
        keys[0] = bytearray(b"long")
        log.sync()
        assert [(entry.key, entry.value) for entry in log.read()] == [(None, b"one"), (b"k", b"two"), (None, b"three")]


def test_a_number_that_is_none_is_refused_at_the_call(tmp_path: Path) -> None:
    """A durable end of 1.5 would go into the next block's header."""
    with Log.open(tmp_path / "log", LogOptions(segment_bytes=4 << 20, durable_when_synced=False)) as log:
        log.append(b"a")
        calls: list[Callable[[Any], object]] = [
            log.raise_durable,
            log.rollback,
            log.sync,
            lambda number: log.wait_for(number, 0.01),
            lambda number: log.hold("one", number),
            lambda number: log.hold("one", 1).advance(number),
            lambda number: next(log.read(from_vlsn=number)),
            lambda number: next(log.pairs(to_vlsn=number)),
        ]
        for call in calls:
            for number in (1.5, float("nan"), "1", None if call != log.sync else "2"):
                with pytest.raises(TypeError):
                    call(number)
        log.raise_durable(-(1 << 70))
        assert not log.wait_for(1 << 70, 0.01)
        for refused in (log.raise_durable, log.sync, log.rollback):
            with pytest.raises(VlsnLogError):
                refused(1 << 70)
        assert told(lambda: log.append(b"b")) == (3, 3)


def test_plain_values_are_not_copied() -> None:
    one, two = b"x" * 1000, b"y" * 1000
    assert owned(one) is one and owned_values(one)[0] is one
    kept = owned_values([one, two])
    assert kept[0] is one and kept[1] is two
    assert owned_keys(None) is None and owned_keys([None, one]) == [None, one]
