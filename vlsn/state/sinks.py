"""Sinks in the small state: writers of a log in numbered batches, and the last part of each.

    sink/orders           {"query": "8a87…", "batch": 41, "part": 2, "parts": 3, …}   batch 41 of a stream, its third
                                                                                      part is missing
    sink/nightly/11-22    {"query": "11-22", "part": 3, "parts": 3, …}                a run: one batch that is finished

A state is set by the COMMIT of the part that it names, so it becomes durable, and is rolled back, with that part's
entries.  The VLSN of that COMMIT says which state it is: the next part names it, and where another state has come since
nothing is logged.

A stream's sink is kept until it is deleted. The last ``RUNS_MAX`` finished runs are kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from vlsn.errors import BadArgument
from vlsn.ids import NUMBER_MAX, Vlsn, is_part
from vlsn.state.small_state import Kept, decoded, under

PREFIX: Final = "sink/"
SINKS_MAX: Final = 256
"""Sinks of streams, and runs that are not finished."""
RUNS_MAX: Final = 256
"""Finished runs that are remembered."""
FORMER_MAX: Final = 8
"""Queries that a state remembers to have been replaced by a reset."""
DIGEST_HEX: Final = 32
_QUERY: Final = re.compile(r"[A-Za-z0-9._-]{1,64}\Z", re.ASCII)
_DIGEST: Final = re.compile(r"[0-9a-f]{32}\Z", re.ASCII)


class SinkState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The part that was logged last: ``part`` of ``parts``, from 1 on, of ``batch`` of ``query``.

    ``rows`` lie in the parts so far, of ``total``; ``digest`` is of those rows in their order.  ``first`` is the VLSN
    of the batch's first row, 0 in the state of part 1.  ``former``: queries that are not to write here any more."""

    query: str
    batch: int
    part: int
    parts: int
    rows: int
    total: int
    digest: str
    first: int = 0
    former: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        return self.part == self.parts

    def check(self) -> None:
        """Raises ``BadArgument`` for a state that no part can have."""
        if _QUERY.match(self.query) is None or not all(_QUERY.match(each) for each in self.former):
            raise BadArgument(f"query: {self.query[:80]!r} is not 1–64 of [A-Za-z0-9._-]")
        if len(self.former) > FORMER_MAX:
            raise BadArgument(f"former: {len(self.former)} queries; at most {FORMER_MAX} are remembered")
        if _DIGEST.match(self.digest) is None:
            raise BadArgument(f"digest: {self.digest[:80]!r} is not {DIGEST_HEX} hex digits")
        for name, value, low, high in (
            ("batch", self.batch, 0, NUMBER_MAX),
            ("parts", self.parts, 1, NUMBER_MAX),
            ("part", self.part, 1, self.parts),
            ("total", self.total, 0, NUMBER_MAX),
            ("rows", self.rows, 0, self.total),
            ("first", self.first, 0, NUMBER_MAX),
        ):
            if not low <= value <= high:
                raise BadArgument(f"{name}: {value} is not in {low}–{high}")
        if self.finished and self.rows != self.total:
            raise BadArgument(f"rows: {self.rows} of {self.total}, though part {self.part} is the last one")


class PlacedSink(NamedTuple):
    """A state, and the VLSN of the COMMIT that set it."""

    at: Vlsn
    state: SinkState


_decoder = msgspec.json.Decoder(SinkState)


def key_of(name: str) -> str:
    """Returns the name in the small state of sink ``name``, or of ``SINK/RUN``. Raises ``BadArgument``."""
    if not 1 <= len(parts := name.split("/")) <= 2 or not all(map(is_part, parts)):
        raise BadArgument(
            f"{name[:140]!r} is no name of a sink: 1–64 of [A-Za-z0-9._-], not . or .., and /RUN behind it for a run"
        )
    return PREFIX + name


def is_run(name: str) -> bool:
    return "/" in name


def state_of(kept: Kept | None) -> PlacedSink | None:
    """Reads a state; None where there is none, or something else lies there."""
    state = decoded(kept, _decoder)
    return PlacedSink(kept.vlsn, state) if kept is not None and state is not None else None


def states_in(kept: Mapping[str, Kept]) -> dict[str, PlacedSink]:
    """Returns all states by the names of their sinks, in their order."""
    return under(kept, PREFIX, state_of)


def outlived(states: Mapping[str, PlacedSink], name: str) -> list[str]:
    """Returns the runs that are forgotten when run ``name`` is set: finished ones, the oldest first."""
    if not is_run(name) or name in states:
        return []
    finished = [(placed.at, run) for run, placed in states.items() if is_run(run) and placed.state.finished]
    return [run for _, run in sorted(finished)[: max(0, len(finished) - RUNS_MAX + 1)]]
