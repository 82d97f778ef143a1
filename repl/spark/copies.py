"""The copies of one group that a read was given, as one log: who has which VLSNs, and which of them are asked for.

    n1   1 ──────────────────── 900            what each has, durable as far as it knows itself
    n2        200 ─────────────────── 1000
    read 1 ──────────────────── 900 │ 901 1000     pieces of n1, then of n2; several nodes share what they both have

An entry above what a copy knows to be durable may be another history's there, whatever the others know.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from repl.audit.directory import DirectorySource
from repl.audit.live import LiveSource
from repl.audit.source import Source, Unreadable
from repl.client.sync import connect_sync
from repl.spark.layout import Layout, Piece
from repl.spark.options import Place, ReadOptions
from repl.spark.places import source_of
from repl.spark.tell import tell
from repl.spark.times import vlsn_at
from vlsn.errors import BadArgument, Damaged, Lagging, Trimmed
from vlsn.real.disk import PosixDisk
from vlsn.segments.restore_marker import check_no_restore

LAG_S: Final = 10.0
"""Seconds that nodes which lag are given to reach the last VLSN that a read asks for."""
POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Share:
    """A piece, and the index of the copy that it lies in."""

    copy: int
    piece: Piece


def layout_of(source: Source) -> Layout:
    """Surveys a copy. Raises ``Unreadable``, ``Restoring`` for one that is half restored, ``WrongVersion``."""
    if type(source) is DirectorySource:
        check_no_restore(PosixDisk(), source.path)
    return Layout(source, source.survey(0))


class Copies:
    """The copies that answered, by their index among the sources. ``first`` and ``end`` are the group's, 0 and 0 for a
    log without an entry."""

    def __init__(self, layouts: dict[int, Layout]) -> None:
        self.layouts = layouts
        held = [layout for layout in layouts.values() if layout.first]
        self.first = min((layout.first for layout in held), default=0)
        self.end = max((layout.end for layout in held), default=0)

    @classmethod
    def of(cls, texts: Sequence[str]) -> Copies:
        """Surveys all of them; a node that does not answer is left out, and told, while another copy is there. Raises
        ``Unreadable``, and ``BadArgument`` for copies of several groups."""
        layouts: dict[int, Layout] = {}
        silent: Unreadable | None = None
        for index, text in enumerate(texts):
            source = source_of(text)
            try:
                layouts[index] = layout_of(source)
            except Unreadable as error:
                if not isinstance(source, LiveSource):
                    raise
                silent = error
                tell(f"{error}; the other sources are read")
        if not layouts:
            assert silent is not None
            raise silent
        groups = {layout.survey.group: texts[index] for index, layout in layouts.items()}
        if len(groups) > 1:
            named = ", ".join(f"{text} is of {group!r}" for group, text in groups.items())
            raise BadArgument(f"one load reads one group: {named}")
        return cls(layouts)

    @classmethod
    def asked(cls, options: ReadOptions) -> Copies:
        """Surveys the sources of a read, until one of them has its last VLSN, and what it is to have at least. Raises
        as ``of`` and ``reaching``, and ``TooFarBehind`` where no node says what there was ``lag_max_s`` ago."""
        last = max(options.to_vlsn if isinstance(options.to_vlsn, int) else 0, options.at_least)
        if options.lag_max_s is not None:
            with connect_sync(",".join(options.sources), timeout_s=LAG_S) as log:
                last = max(last, log.durable_vlsn(lag_max_s=options.lag_max_s))
        return cls.reaching(options.sources, last) if last else cls.of(options.sources)

    @classmethod
    def reaching(cls, texts: Sequence[str], vlsn: int) -> Copies:
        """Surveys as ``of`` until one of the copies has ``vlsn``, durable, for ``LAG_S`` where a node runs. Raises
        ``Lagging`` with the VLSN that was reached: a read that ends before its end would lose entries silently."""
        deadline = time.monotonic() + LAG_S
        while True:
            copies = cls.of(texts)
            if copies.end >= vlsn:
                return copies
            running = [layout.source for layout in copies.layouts.values() if layout.survey.live]
            if not running or time.monotonic() >= deadline:
                waited = f" after {LAG_S:g} s" if running else ""
                raise Lagging(
                    f"VLSN {vlsn} was asked for, and {', '.join(texts)} reached VLSN {copies.end}{waited}: what lies "
                    "behind it is not known to be durable there; name all of the group's nodes, ask for less, or "
                    "leave the end out to read as far as it goes"
                )
            time.sleep(POLL_S)
            while time.monotonic() < deadline and not any(_has(source, vlsn) for source in running):
                time.sleep(POLL_S)

    def bounds(self, options: ReadOptions) -> tuple[int, int]:
        """Returns first and last VLSN of what was asked for and is there, inclusive; the last is below the first where
        nothing is. Raises ``Trimmed`` for a beginning that was cleaned away, unless it may be left out."""
        if not self.first:
            return 1, 0
        begin, upto = options.from_vlsn, options.to_vlsn
        first = self.end + 1 if begin is Place.END else self.first if isinstance(begin, Place) else begin
        last = self.first if upto is Place.START else self.end if isinstance(upto, Place) else min(upto, self.end)
        if options.since_us is not None:
            first = self.vlsn_at(options.since_us)
        if options.until_us is not None:
            last = min(self.vlsn_at(options.until_us) - 1, self.end)
        if first < self.first and options.since_us is None:
            gone = f"VLSN {first} was cleaned away; the log begins at VLSN {self.first}"
            if options.fail_on_trim:
                hint = f"read from {self.first}, or set failOnTrim to false"
                raise Trimmed(f"{gone}: {hint}", first=self.first)
            tell(f"{gone}, and so does this read")
        return max(first, self.first), last

    def shares(self, first: int, last: int, target_bytes: int) -> list[Share]:
        """Cuts ``first`` to ``last`` into pieces, each in a copy that has it. Raises ``Damaged`` where none has."""
        shares: list[Share] = []
        while first <= last:
            main = self.main(first)
            reach = min(self.layouts[main].end, last)
            shares += self._shared(main, first, reach, target_bytes)
            first = reach + 1
        return shares

    def main(self, vlsn: int) -> int:
        """Returns the copy that has ``vlsn`` and goes furthest from there. Raises ``Damaged`` where none has it."""
        having = {index: layout for index, layout in self.layouts.items() if layout.holds(vlsn, vlsn)}
        if not having:
            raise Damaged(f"no source has VLSN {vlsn}", vlsn=vlsn)
        return max(having, key=lambda index: (having[index].end, -index))

    def _shared(self, main: int, first: int, last: int, target_bytes: int) -> Iterator[Share]:
        """Gives each node that has all of this its part of it; what lies in directories is read from one."""
        nodes = [main]
        if isinstance(self.layouts[main].source, LiveSource):
            nodes += [
                index
                for index, layout in self.layouts.items()
                if index != main and isinstance(layout.source, LiveSource) and layout.holds(first, last)
            ]
        layout = self.layouts[main]
        parts = [(first, last)]
        if len(nodes) > 1:
            bytes_each = max(layout.bytes_of(first, last) // len(nodes), target_bytes)
            parts = [(piece.first, piece.last) for piece in layout.pieces(first, last, bytes_each)]
        for index, (begin, end) in enumerate(parts):
            node = nodes[index % len(nodes)]
            for piece in self.layouts[node].pieces(begin, end, target_bytes):
                yield Share(node, piece)

    def vlsn_at(self, time_us: int) -> int:
        """Returns the VLSN of a time in the copy that goes furthest. Raises ``Unreadable``."""
        failed: Unreadable | None = None
        for layout in self.layouts.values():
            if layout.end < self.end:
                continue
            try:
                return vlsn_at(layout, time_us)
            except Unreadable as error:
                failed = error
        assert failed is not None
        raise failed

    @property
    def bytes(self) -> int:
        """The size of the largest copy."""
        return max(layout.total for layout in self.layouts.values())


def _has(source: Source, vlsn: int) -> bool:
    """Says whether a running node's copy may have ``vlsn`` by now; a survey says it for certain."""
    if not isinstance(source, LiveSource):
        return True
    try:
        return source.dtvlsn() >= vlsn
    except Unreadable:
        return False
