"""Sealing: every submission whole, in order, in as few blocks as the limits let it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vlsn.strategies import content, submissions, transactions
from vlsn.errors import BadBody, TooLarge
from vlsn.format import batch, block, seal, submission
from vlsn.format.block import BLOCK_BYTES, EntryKind
from vlsn.format.columns import producer_bytes
from vlsn.format.producer_columns import PRODUCER_BYTES
from vlsn.format.seal import ALONE_BYTES, Sealed
from vlsn.format.submission import Submission, Values
from vlsn.limits import BATCH_ENTRIES_MAX, BLOCK_BYTES_MAX

FIRST = 10


def sealed_from(given: list[Submission], block_bytes_max: int = BLOCK_BYTES_MAX) -> list[Sealed]:
    return seal.seal(given, term=3, first_vlsn=FIRST, dtvlsn=9, clock_us=7, block_bytes_max=block_bytes_max)


def read_back(sealed: list[Sealed]) -> list[tuple[bytes | None, bytes]]:
    """Returns the entries of blocks that follow on exactly; each is decoded with every check."""
    found, next_vlsn = [], FIRST
    for one in sealed:
        header = block.decode(one.data)
        assert (header.term, header.dtvlsn, header.clock_us, header.kind) == (3, 9, 7, EntryKind.DATA)
        assert (header.first_vlsn, header.last_vlsn) == (one.first_vlsn, one.last_vlsn)
        assert one.first_vlsn == next_vlsn
        assert header.submissions == one.submissions
        next_vlsn = one.last_vlsn + 1
        found += [(entry.key, entry.value) for entry in block.entries(one.data, header)]
    return found


@given(st.lists(submissions(), min_size=1, max_size=6), st.sampled_from([300, 2000, BLOCK_BYTES_MAX]))
def test_every_producer_and_sequence_stands_at_its_vlsns(given: list[Submission], block_bytes_max: int) -> None:
    expected, first = [], FIRST
    for one in given:
        if one.producer:
            expected.append((one.producer, one.sequence, first, first + one.count - 1, 3))
        first += one.count
    sealed = sealed_from(given, block_bytes_max)
    read_back(sealed)
    assert [row for each in sealed for row in block.producers(each.data, block.decode(each.data))] == expected


@given(st.lists(submissions(), min_size=1, max_size=6))
def test_merged_bytes_do_not_depend_on_how_they_came(given: list[Submission]) -> None:
    """Values, batches, and any mixture of them with the same content make the same body."""
    pairs = [pair for one in given for pair in content(one)]
    at_once = Values([value for _, value in pairs], [key for key, _ in pairs])
    [merged], [single] = sealed_from(given), sealed_from([at_once])
    header = block.decode(merged.data)
    named = producer_bytes(header.submissions) if any(one.producer for one in given) else 0
    assert merged.data[BLOCK_BYTES + named :] == single.data[BLOCK_BYTES:]


@given(submissions() | transactions())
def test_bytes_bound_what_a_submission_takes_of_a_block(given: Submission) -> None:
    [sealed] = sealed_from([given])
    assert len(sealed.data) <= BLOCK_BYTES + given.bytes + 5 * 8


@pytest.mark.parametrize("values", [[b"value"], [b"value", b"more"]])
def test_a_lone_batch_is_sealed_untouched(values: list[bytes]) -> None:
    """Its crc is taken over and not made again: damage in memory between check and write stays visible."""
    data = bytearray(batch.encode(values))
    checked = batch.decode(data)
    [sealed] = sealed_from([checked])
    assert sealed.data[BLOCK_BYTES:] == data[batch.BATCH_BYTES :]
    data[-1] ^= 1
    [damaged] = sealed_from([checked])
    assert block.decode_header(damaged.data).body_crc == checked.body_crc
    with pytest.raises(BadBody, match="body crc"):
        block.decode(damaged.data)


@pytest.mark.parametrize(
    "kind", ["values", "keyed values", "batches", "keyed batches", "batches of three", "producers", "one producer"]
)
def test_sixty_four_submissions_make_one_block(kind: str) -> None:
    def one(number: int) -> Submission:
        value, key = b"value %d" % number, b"key %d" % number
        match kind:
            case "values":
                return Values([value])
            case "keyed values":
                return Values([value], [key if number % 2 else None])
            case "batches":
                return batch.decode(batch.encode([value]))
            case "producers":
                return batch.decode(batch.encode([value], producer=(number + 1, 7)))
            case "one producer" if number == 40:
                return Values([value], None, (1, 0))
            case "keyed batches":
                return batch.decode(batch.encode([value], [key]))
        return batch.decode(batch.encode([value, b"", b"third"]))

    given = [one(number) for number in range(64)]
    sealed = sealed_from(given)
    assert [part.submissions for part in sealed] == [64]
    named = {row[0] for row in block.producers(sealed[0].data, block.decode(sealed[0].data))}
    assert named == {"producers": set(range(1, 65)), "one producer": {1}}.get(kind, set())
    assert read_back(sealed) == [pair for submission in given for pair in content(submission)]


@pytest.mark.parametrize("as_batch", [False, True])
def test_a_large_submission_is_a_block_of_its_own(as_batch: bool) -> None:
    large: Submission = Values([bytes(ALONE_BYTES)])
    if as_batch:
        large = batch.decode(batch.encode([bytes(ALONE_BYTES)]))
    small = Values([b"a"])
    sealed = sealed_from([small, small, large, small, large, large])
    assert [one.submissions for one in sealed] == [2, 1, 1, 1, 1]
    assert len(read_back(sealed)) == 6


def test_a_submission_over_the_block_limit_is_not_split() -> None:
    sealed = sealed_from([Values([b"a"]), Values([bytes(300_000)] * 5), Values([b"b"])])
    assert [one.submissions for one in sealed] == [1, 1, 1]
    assert len(sealed[1].data) > BLOCK_BYTES_MAX
    assert len(read_back(sealed)) == 7


def test_a_block_has_no_more_entries_than_its_format() -> None:
    sealed = sealed_from([Values([b""] * 3000)] * 30)
    assert [one.submissions for one in sealed] == [21, 9]
    assert sealed[0].last_vlsn - FIRST + 1 <= BATCH_ENTRIES_MAX


def test_local_entries_are_one_block_of_no_submission() -> None:
    sealed = seal.seal_local(
        [EntryKind.TERM, EntryKind.GROUP], [b"{}", b"[]"], term=1, first_vlsn=1, dtvlsn=0, clock_us=0
    )
    header = block.decode(sealed.data)
    assert (sealed.first_vlsn, sealed.last_vlsn, sealed.submissions, header.submissions) == (1, 2, 0, 0)
    assert [(entry.kind, entry.value) for entry in block.entries(sealed.data, header)] == [(1, b"{}"), (2, b"[]")]
    alone = seal.seal_local([EntryKind.TERM], [b"{}"], term=1, first_vlsn=1, dtvlsn=0, clock_us=0)
    assert block.decode(alone.data).kind == EntryKind.TERM


@pytest.mark.parametrize(
    "limits",
    [{"entry_bytes_max": 4}, {"key_bytes_max": 2}, {"entries_max": 1}, {"body_bytes_max": 44}],
    ids=str,
)
def test_values_past_a_limit_are_too_large(limits: dict[str, Any]) -> None:
    values, keys = [b"value", b""], [b"key", None]
    exact: dict[str, Any] = {"entry_bytes_max": 5, "key_bytes_max": 3, "entries_max": 2, "body_bytes_max": 45}
    assert batch.decode(batch.encode(values, keys), **exact).count == 2, "a batch has the same limits"
    submission.check_values(values, keys, **exact)
    with pytest.raises(TooLarge):
        submission.check_values(values, keys, **exact | limits)
    submission.check_values(values, keys, named=True, **exact | {"body_bytes_max": 45 + PRODUCER_BYTES})
    with pytest.raises(TooLarge, match="body"):
        submission.check_values(values, keys, named=True, **exact | {"body_bytes_max": 44 + PRODUCER_BYTES})


@pytest.mark.parametrize(("values", "keys"), [([], None), ([b"v"], []), ([b"v"], [b"k", b"k"])])
def test_nothing_and_an_uneven_number_of_keys_are_refused(values: list[bytes], keys: list[bytes] | None) -> None:
    with pytest.raises(BadBody):
        submission.values_of(values, keys)


def test_values_forget_keys_that_are_all_empty() -> None:
    assert not submission.values_of([b"v", b"w"], [b"", None]).keyed
    assert submission.values_of([b"v", b"w"], [b"", b"k"]).keys == [b"", b"k"]
