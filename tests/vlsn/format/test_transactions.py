"""Transactions in blocks: each whole in one, its rows bear its id, and a COMMIT ends it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vlsn.format.test_seal import FIRST, sealed_from
from tests.vlsn.strategies import content, submissions, transactions
from vlsn.errors import BadBody, TooLarge
from vlsn.format import block
from vlsn.format.batch import decode, encode
from vlsn.format.block import Entry, EntryKind
from vlsn.format.columns import SMALL_COLUMN, Columns, columns_of
from vlsn.format.own_entries import own_entries
from vlsn.format.same_submission import lies_in, same
from vlsn.format.seal import ALONE_BYTES, MIXED_ENTRIES_MAX
from vlsn.format.submission import Submission, Transaction, Values, check_transaction
from vlsn.ids import Vlsn
from vlsn.limits import BATCH_ENTRIES_MAX, BLOCK_BYTES_MAX, BODY_BYTES_MAX, TRANSACTION_BYTES_MAX

LONG = SMALL_COLUMN // 2 + 1
"""Whole transactions that take more rows than a short column has."""
mixtures = st.lists(submissions() | transactions(), min_size=1, max_size=6)


def rows_of(given: list[Submission]) -> list[tuple[int, int, int, bytes | None, bytes]]:
    """VLSN, transaction, kind, key and value of each entry, by the plainest of ways."""
    rows, vlsn = [], FIRST
    for one in given:
        first = vlsn
        for key, value in content(one):
            inside = isinstance(one, Transaction)
            ends = inside and vlsn == first + one.count - 1
            kind = EntryKind.COMMIT if ends else EntryKind.DATA
            rows.append((vlsn, first if inside else 0, int(kind), key, value))
            vlsn += 1
    return rows


@given(mixtures, st.sampled_from([1, LONG]), st.sampled_from([300, 700, 2000, BLOCK_BYTES_MAX]))
def test_each_transaction_is_whole_in_one_block(given: list[Submission], times: int, block_bytes_max: int) -> None:
    given = given * times
    sealed = sealed_from(given, block_bytes_max)
    found: list[Entry] = []
    taken = 0
    for one in sealed:
        header = block.decode(one.data)
        part, taken = given[taken : taken + one.submissions], taken + one.submissions
        assert header.count == sum(each.count for each in part), "never split"
        assert len(one.data) <= block_bytes_max or one.submissions == 1
        found += block.entries(one.data, header)
        ends = [entry.vlsn for entry in block.entries(one.data, header) if entry.txn and entry.kind == EntryKind.COMMIT]
        assert one.txn_end == own_entries(one.data, header).txn_end == max(ends, default=0)
    assert [(each.vlsn, each.txn, each.kind, each.key, each.value) for each in found] == rows_of(given)


@given(mixtures)
def test_plain_blocks_have_no_columns_of_transactions(given: list[Submission]) -> None:
    plain: list[Submission] = [one for one in given if not isinstance(one, Transaction)]
    if plain:
        assert all(not block.decode(one.data).flags & 3 for one in sealed_from(plain))


@given(mixtures)
def test_what_a_mixed_group_takes_is_within_what_was_counted(given: list[Submission]) -> None:
    """Placing counts each submission for itself, with a header and eight bytes an entry more."""
    counted = sum(one.bytes + 8 * one.count + 152 for one in given)
    assert sum(len(one.data) + 24 for one in sealed_from(given)) <= counted


def test_what_a_cut_begins_with_is_counted_as_a_mixed_block_has_it() -> None:
    """The plain submission that a cut leaves for the next block has the columns of the transaction behind it there."""
    commit = Transaction([Values([b"x" * 700])])
    given: list[Submission] = [Values([b"y" * 1_300]), Values([b""] * 62, [b"k" * 9] * 62), commit]
    assert all(len(one.data) <= 2_000 for one in sealed_from(given, 2_000))


def test_long_plain_submissions_share_no_block_with_transactions() -> None:
    few, many = Values([b""] * MIXED_ENTRIES_MAX), Values([b""] * (MIXED_ENTRIES_MAX + 1))
    commit = Transaction([Values([b"a"])])
    assert [one.submissions for one in sealed_from([few, commit, many, commit])] == [2, 1, 1]
    assert [one.submissions for one in sealed_from([Values([b"x" * ALONE_BYTES]), commit])] == [1, 1]


@given(mixtures, st.sampled_from([1, LONG]))
def test_own_entries_are_those_that_say_something(given: list[Submission], times: int) -> None:
    for one in sealed_from(given * times):
        header = block.decode(one.data)
        plain = [
            entry
            for entry in block.entries(one.data, header)
            if entry.kind != EntryKind.DATA and (entry.kind != EntryKind.COMMIT or entry.value)
        ]
        assert own_entries(one.data, header).entries == plain


@given(st.lists(submissions() | transactions(), min_size=2, max_size=5), st.data())
def test_a_transaction_lies_only_where_it_was_logged(given: list[Submission], data: st.DataObject) -> None:
    sealed = sealed_from(given)
    place = FIRST
    for one in given:
        [found] = [each for each in sealed if each.first_vlsn <= place <= each.last_vlsn]
        assert lies_in(found.data, Vlsn(place), one)
        place += one.count


def test_plain_entries_are_not_a_transaction_that_says_the_same() -> None:
    plain, whole = Values([b"a", b""]), Transaction([Values([b"a"])])
    [sealed] = sealed_from([plain])
    assert not lies_in(sealed.data, Vlsn(FIRST), whole)
    assert not same(plain, whole)
    [sealed] = sealed_from([whole])
    assert not lies_in(sealed.data, Vlsn(FIRST), plain)
    assert same(whole, Transaction([decode(encode([b"a"]))]))


DATA, COMMIT = EntryKind.DATA, EntryKind.COMMIT


@pytest.mark.parametrize(
    ("kinds", "txns"),
    [
        ([DATA, DATA], [FIRST, FIRST]),  # no COMMIT: open at the block's end
        ([DATA, COMMIT], [FIRST - 1, FIRST - 1]),  # begun in the block before
        ([COMMIT, COMMIT], [FIRST, FIRST]),  # two COMMITs
        ([DATA, COMMIT, DATA], [FIRST, FIRST, FIRST]),  # goes on behind its COMMIT
        ([DATA, DATA, COMMIT], [FIRST, 0, FIRST]),  # another's entry in it
        ([DATA, EntryKind.ABORT], [FIRST, FIRST]),
        ([DATA, EntryKind.TERM, COMMIT], [FIRST, FIRST, FIRST]),
        ([COMMIT, DATA], [0, FIRST + 1]),
        ([EntryKind.TERM, COMMIT], [FIRST, FIRST + 1]),  # ends as transactions do, but for its kind
    ],
)
@pytest.mark.parametrize("before", [0, LONG])
def test_what_is_no_whole_transaction_is_refused(kinds: list[EntryKind], txns: list[int], before: int) -> None:
    begins = [FIRST + 2 * number for number in range(before)]
    kinds = [DATA, COMMIT] * before + kinds
    txns = [id for begin in begins for id in (begin, begin)] + [txn and txn + 2 * before for txn in txns]
    is_refused(kinds, txns)


def is_refused(kinds: list[EntryKind], txns: list[int]) -> None:
    columns = columns_of([b""] * len(kinds))
    ids = np.array(txns, "<u8").tobytes()
    columns = Columns(columns.count, columns.value_offsets, columns.values, txns=ids)
    data = block.build(term=3, first_vlsn=FIRST, dtvlsn=9, clock_us=7, kind=kinds, columns=columns, submissions=0)
    with pytest.raises(BadBody, match="transaction"):
        block.decode(data)


def test_the_limit_of_a_transaction_is_a_block() -> None:
    check_transaction(BATCH_ENTRIES_MAX, TRANSACTION_BYTES_MAX)
    with pytest.raises(TooLarge):
        check_transaction(BATCH_ENTRIES_MAX + 1, 100)
    with pytest.raises(TooLarge):
        check_transaction(2, TRANSACTION_BYTES_MAX + 1)
    most = Transaction([Values([b"v" * 1024], [b"k"])] * 16_050, b"{}", (7, 1))
    assert TRANSACTION_BYTES_MAX - 100_000 < most.bytes <= TRANSACTION_BYTES_MAX
    [sealed] = sealed_from([most])
    assert block.decode(sealed.data).body_bytes <= BODY_BYTES_MAX
