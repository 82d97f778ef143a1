"""The small state: a table of names with values. Entries of the log set the values, so the table is the same on every
node.

The small state follows from the visible log up to a VLSN alone, so it is rolled back, recovered and restored with the
log:

1. A COMMIT entry (``CommitEntry.put``) sets each of its names to a JSON value, or removes the name. The change is valid
   from the VLSN of the COMMIT on.
2. The limits on names and values are checked in log order, so every node ignores the same values that exceed a limit. A
   master refuses values over a limit before they are logged (``fault``), so the log contains such a value only by an
   error.
3. The small state can be rolled back to any VLSN from ``settled`` on. Values that only a rollback to an earlier VLSN
   would need are dropped.
4. Tokens (names under ``TOKEN_PREFIX``) have a share of their own, which no other name can fill. Tokens do not fill the
   share of other names. No token is logged below level 5, so that earlier binaries count the same.
5. If a cleaned log has lost its state record, its small state misses all values set up to ``lacks_to``, until these
   values are filled in from another copy of the table.

    VLSN 4  put a=1            a=1 (4)
    VLSN 9  put a=2, b=7       a=2 (9)  b=7 (9)        settle(4): only VLSN 9 and 12 can be undone
    VLSN 12 put a=null         b=7 (9)                 truncate(9): a=2 (9)  b=7 (9)

In memory, the table has at most 4,096 names and 1 MiB, and 1,024 tokens and 512 KiB. In addition, each name set since
the settled VLSN needs about 300 bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar

import msgspec

from vlsn.ids import Vlsn
from vlsn.limits import (
    SMALL_STATE_BYTES_MAX,
    SMALL_STATE_NAME_BYTES_MAX,
    SMALL_STATE_NAMES_MAX,
    SMALL_STATE_VALUE_BYTES_MAX,
    TOKENS_BYTES_MAX,
    TOKENS_MAX,
)
from vlsn.state.log_table import LogTable

T = TypeVar("T")
TOKEN_PREFIX: Final = "token/"
"""The start of the names of tokens (``repl/auth/tokens.py``)."""


@dataclass(frozen=True, slots=True)
class SmallStateLimits:
    """The limits of the small state. The limits must be the same on every node; otherwise the nodes' tables would
    differ."""

    names: int = SMALL_STATE_NAMES_MAX
    name_bytes: int = SMALL_STATE_NAME_BYTES_MAX
    value_bytes: int = SMALL_STATE_VALUE_BYTES_MAX
    bytes: int = SMALL_STATE_BYTES_MAX
    """The most bytes of all names and values together."""
    tokens: int = TOKENS_MAX
    """The names of tokens, which do not count as ``names``."""
    tokens_bytes: int = TOKENS_BYTES_MAX
    """The bytes of all tokens, which do not count as ``bytes``."""


@dataclass(slots=True)
class Share:
    """The names and bytes in one share of the table."""

    names: int = 0
    bytes: int = 0


class Kept(NamedTuple):
    """A JSON value, and the VLSN of the COMMIT that set the value. No two values of a name have the same VLSN."""

    vlsn: Vlsn
    value: bytes


class SmallStateRecord(msgspec.Struct, frozen=True):
    """The small state as of a VLSN: for each name, its value, and the VLSN of the COMMIT that set the value."""

    values: dict[str, tuple[int, bytes]] = {}
    lacks_to: int = 0
    """The VLSN up to which the record misses values; 0 if it misses none."""

    def kept(self) -> dict[str, Kept]:
        return {name: Kept(Vlsn(vlsn), value) for name, (vlsn, value) in self.values.items()}

    def check(self, vlsn: int) -> None:
        """Raises ``ValueError`` for values that are not possible as of ``vlsn``."""
        for name, (at, _) in self.values.items():
            if not 0 < at <= vlsn:
                raise ValueError(f"small state: {name!r} is set at VLSN {at}, the record is of {vlsn}")


class _Put(NamedTuple):
    """One update of a name. ``before`` is the value before the update. ``taken`` is true if the update was within the
    limits, so that it was applied."""

    vlsn: Vlsn
    name: str
    value: bytes | None
    before: Kept | None
    taken: bool


class SmallState(LogTable, Mapping[str, Kept]):
    """The small state of one log, up to the last VLSN noted."""

    def __init__(self, record: SmallStateRecord | None = None, limits: SmallStateLimits | None = None) -> None:
        self.limits = limits or SmallStateLimits()
        record = record or SmallStateRecord()
        self._kept = record.kept()
        self.tokens, self.others = Share(), Share()
        for name, kept in self._kept.items():
            self._count(name, kept.value, 1)
        self._puts: list[_Put] = []
        """The updates since VLSN ``settled``, in log order."""
        self.lacks_to = record.lacks_to
        self.settled = max((kept.vlsn for kept in self._kept.values()), default=self.lacks_to)

    def __getitem__(self, name: str) -> Kept:
        return self._kept[name]

    def __contains__(self, name: object) -> bool:
        return name in self._kept

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size(self) -> int:
        """The bytes of all names and values."""
        return self.tokens.bytes + self.others.bytes

    def share_of(self, name: str) -> Share:
        """Returns the share that ``name`` counts to."""
        return self.tokens if is_token(name) else self.others

    # Values at earlier VLSNs.

    def at(self, name: str, vlsn: int) -> Kept | None:
        """Returns the value of ``name`` as of ``vlsn``, which must not be below ``settled``."""
        start = bisect_right(self._puts, vlsn, key=_vlsn_of)
        undone = next((put for put in self._puts[start:] if put.taken and put.name == name), None)
        return undone.before if undone is not None else self._kept.get(name)

    def as_of(self, vlsn: int) -> dict[str, Kept]:
        """Returns the values of all names as of ``vlsn``."""
        kept = dict(self._kept)
        for put in reversed(self._puts):
            if put.vlsn <= vlsn:
                break
            _undo(kept, put)
        return dict(sorted(kept.items()))

    # Changes.

    def note(self, vlsn: Vlsn, puts: Mapping[str, bytes | None]) -> None:
        """Applies the updates of the COMMIT at ``vlsn``, which must be after all COMMITs noted before. A value of None
        removes the name."""
        for name, value in puts.items():
            before, share = self._kept.get(name), self.share_of(name)
            taken = self.fault(name, value, names=share.names, size=share.bytes) is None
            self._puts.append(_Put(vlsn, name, value, before, taken))
            if taken:
                self._set(name, Kept(vlsn, value) if value is not None else None)

    def fault(self, name: str, value: bytes | None, *, names: int, size: int) -> str | None:
        """Returns the reason why ``name`` cannot be set in a share that has ``names`` names and ``size`` bytes. Returns
        None if ``name`` can be set."""
        limits, before = self.limits, self._kept.get(name)
        if before is not None and (value is None or len(value) <= len(before.value)):
            return None  # the name exists already, and its value does not grow
        if not 1 <= len(name.encode()) <= limits.name_bytes:
            return f"a name of {len(name.encode())} bytes; 1 to {limits.name_bytes} are taken"
        if value is None:
            return None
        if len(value) > limits.value_bytes:
            return f"a value of {len(value)} bytes for {name[:64]!r}; at most {limits.value_bytes} are taken"
        names_max, bytes_max = limits.names, limits.bytes
        if is_token(name):
            names_max, bytes_max = limits.tokens, limits.tokens_bytes
        if before is None and names >= names_max:
            return f"{names} names are set already, which is the most allowed"
        grows = _size(name, value) - (_size(name, before.value) if before is not None else 0)
        if grows > 0 and size + grows > bytes_max:
            return f"{name[:64]!r} would make it {size + grows} bytes; all names and values take {bytes_max} at most"
        return None

    def _set(self, name: str, kept: Kept | None) -> None:
        before = self._kept.pop(name, None)
        if kept is not None:
            self._kept[name] = kept
            self._count(name, kept.value, 1)
        if before is not None:
            self._count(name, before.value, -1)

    def _count(self, name: str, value: bytes, sign: int) -> None:
        share = self.share_of(name)
        share.names += sign
        share.bytes += sign * _size(name, value)

    def settle(self, vlsn: Vlsn) -> None:
        """Settles everything up to ``vlsn``, which no rollback can undo."""
        self.settled = max(self.settled, vlsn)
        del self._puts[: bisect_right(self._puts, vlsn, key=_vlsn_of)]

    def truncate(self, last: Vlsn) -> None:
        """Undoes all updates after ``last``, which must not be below the settled VLSN."""
        while self._puts and self._puts[-1].vlsn > last:
            put = self._puts.pop()
            if put.taken:
                self._set(put.name, put.before)

    # Filling a missing part.

    def check_fill(self, known: SmallState, vlsn: Vlsn) -> None:
        """Compares this table with ``known``, another copy's table as of ``vlsn``. The two tables must agree on values
        set after ``lacks_to``. Raises ``ValueError`` if the tables disagree."""
        self.check_exact(vlsn, "small state")
        mine = {name: kept for name, kept in self.as_of(vlsn).items() if kept.vlsn > self.lacks_to}
        theirs = {name: kept for name, kept in known.items() if kept.vlsn > self.lacks_to}
        for name in sorted(mine.keys() | theirs.keys()):
            if mine.get(name) != theirs.get(name):
                raise ValueError(f"{name!r} has another value in the other copy than in this log")

    def fill(self, known: SmallState, vlsn: Vlsn) -> None:
        """Replaces this table's content with that of ``known``, which has passed ``check_fill``, and applies this log's
        updates after ``vlsn`` again. ``known`` must not be used afterwards."""
        for put in self._puts[bisect_right(self._puts, vlsn, key=_vlsn_of) :]:
            known.note(put.vlsn, {put.name: put.value})
        self._kept, self._puts = known._kept, known._puts
        self.tokens, self.others = known.tokens, known.others
        self.lacks_to, self.settled = known.lacks_to, vlsn

    # Copies for checkpoints and restores.

    def snapshot(self, vlsn: Vlsn) -> Callable[[], SmallStateRecord]:
        """Copies the table. The returned function makes the record from the copy, on any thread."""
        kept, lacks_to = self.as_of(vlsn), self.lacks_to
        return lambda: SmallStateRecord({name: (each.vlsn, each.value) for name, each in kept.items()}, lacks_to)


def is_token(name: str) -> bool:
    """Says whether ``name`` counts to the share of tokens."""
    return name.startswith(TOKEN_PREFIX)


def decoded(kept: Kept | None, decoder: msgspec.json.Decoder[T]) -> T | None:
    """Decodes the value ``kept``. Returns None if the value is missing or cannot be decoded."""
    try:
        return decoder.decode(kept.value) if kept is not None else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def under(kept: Mapping[str, Kept], prefix: str, read: Callable[[Kept], T | None]) -> dict[str, T]:
    """Applies ``read`` to the values whose names begin with ``prefix``. Returns the results by the names without
    ``prefix``, in the order of the names."""
    found = {name.removeprefix(prefix): read(kept[name]) for name in sorted(kept) if name.startswith(prefix)}
    return {name: value for name, value in found.items() if value is not None}


_vlsn_of: Callable[[_Put], Vlsn] = attrgetter("vlsn")


def _undo(kept: dict[str, Kept], put: _Put) -> None:
    if not put.taken:
        return
    if put.before is None:
        kept.pop(put.name, None)
    else:
        kept[put.name] = put.before


def _size(name: str, value: bytes) -> int:
    return len(name.encode()) + len(value)
