"""Sinks in the small state (the log's table of names and values). A sink is a writer that appends numbered batches to
the log, each batch in one or more parts. A sink's value in the table is its state: the last part that was logged.

    sink/orders           {"query": "8a87…", "batch": 41, "part": 2, "parts": 3, …}   batch 41 of a stream, its third
                                                                                      part is missing
    sink/nightly/11-22    {"query": "11-22", "part": 3, "parts": 3, …}                a run: one batch that is finished

A part is logged as one transaction, and the transaction's COMMIT entry sets the sink's state. So state and entries of
the part become durable, or are rolled back, together. The VLSN of the COMMIT identifies the state. The next part names
that VLSN, and is refused if another state was set since.

The state of a stream's sink is kept until it is deleted. Of finished runs, the last ``RUNS_MAX`` states are kept.
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
"""The most sinks of streams and unfinished runs together. A run writes a single batch."""
RUNS_MAX: Final = 256
"""The most finished runs whose states are kept."""
FORMER_MAX: Final = 8
"""The most former queries that a state lists. A reset of a sink replaces its query."""
DIGEST_HEX: Final = 32
_QUERY: Final = re.compile(r"[A-Za-z0-9._-]{1,64}\Z", re.ASCII)
_DIGEST: Final = re.compile(r"[0-9a-f]{32}\Z", re.ASCII)


class SinkState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The state of a sink: the part that was logged last. The last part has number ``part`` (from 1 on) of ``parts``
    parts of batch ``batch`` of the query ``query``.

    ``rows`` is the number of rows in the batch's parts so far, and ``total`` the number of rows in the whole batch.
    ``digest`` is computed over the rows so far, in their order. ``first`` is the VLSN of the batch's first row, or 0 in
    the state of part 1. ``former`` lists queries that may no longer write to this sink.
    """

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
        """Raises ``BadArgument`` for a state that no part of a batch can have."""
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
    """The state of a sink, and the VLSN of the COMMIT that set the state."""

    at: Vlsn
    state: SinkState


_decoder = msgspec.json.Decoder(SinkState)


def key_of(name: str) -> str:
    """Returns the name in the small state for the sink ``name``, or for the run ``SINK/RUN``. Raises ``BadArgument``
    for a bad name."""
    if not 1 <= len(parts := name.split("/")) <= 2 or not all(map(is_part, parts)):
        raise BadArgument(
            f"{name[:140]!r} is no name of a sink: 1–64 of [A-Za-z0-9._-], not . or .., and /RUN after it for a run"
        )
    return PREFIX + name


def is_run(name: str) -> bool:
    return "/" in name


def state_of(kept: Kept | None) -> PlacedSink | None:
    """Decodes the state of a sink. Returns None if the value is missing or is not the state of a sink."""
    state = decoded(kept, _decoder)
    return PlacedSink(kept.vlsn, state) if kept is not None and state is not None else None


def states_in(kept: Mapping[str, Kept]) -> dict[str, PlacedSink]:
    """Returns the states of all sinks by the sinks' names, ordered by name."""
    return under(kept, PREFIX, state_of)


def outlived(states: Mapping[str, PlacedSink], name: str) -> list[str]:
    """Returns the finished runs, oldest first, whose states are removed when the state of run ``name`` is set."""
    if not is_run(name) or name in states:
        return []
    finished = [(placed.at, run) for run, placed in states.items() if is_run(run) and placed.state.finished]
    return [run for _, run in sorted(finished)[: max(0, len(finished) - RUNS_MAX + 1)]]
