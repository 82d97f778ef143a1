"""Combines several copies of one group's log into one log, and finds the requested VLSNs in the copies.

    n1   1 ──────────────────── 900            the VLSNs of each copy that the copy itself knows to be durable
    n2        200 ─────────────────── 1000
    read 1 ──────────────────── 900 │ 901 1000     pieces of n1, then of n2; nodes share the VLSNs that both have

Of each copy, only entries that this copy itself knows to be durable are read. A copy's later entries may differ from
those of the other copies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_fixed

from repl.audit.directory import DirectorySource
from repl.audit.live import LiveSource
from repl.audit.source import Gone, Source, Unreadable
from repl.client.sync import connect_sync
from repl.spark.errors import tell
from repl.spark.group_of import at_once, one_group
from repl.spark.layout import Layout, Piece
from repl.spark.options import AS_USUAL, Asked, Place, ReadOptions
from repl.spark.places import is_url, source_of
from repl.spark.times import vlsn_at
from vlsn.errors import Damaged, Lagging, Trimmed
from vlsn.real.disk import PosixDisk
from vlsn.segments.restore_marker import check_no_restore

LAG_S: Final = 10.0
"""Seconds that lagging nodes have to reach the last VLSN that a read requests."""
POLL_S: Final = 0.2
TRIES: Final = 5
"""The most tries of a read that fails. A running node may have changed the files in between, so another try may
succeed."""
PAUSE_S: Final = 0.3
"""The seconds between two tries of a read."""
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Share:
    """A piece of the log, and the index of the copy that contains the piece."""

    copy: int
    piece: Piece


def again(work: Callable[[], R], before: Callable[[], None] = lambda: None) -> R:
    """Returns the result of ``work``. If ``work`` cannot read something, calls ``before`` and tries again, because a
    running node may have cleaned files since the survey. Raises the error of ``work``; at once if a node is gone."""
    tries = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, Unreadable) and not isinstance(error, Gone)),
        stop=stop_after_attempt(TRIES),
        wait=wait_fixed(PAUSE_S),
        before_sleep=lambda _: before(),
        reraise=True,
    )
    return tries(work)


def left_out(vlsn: int, first: int, options: ReadOptions) -> None:
    """Reports that a read leaves out the cleaned VLSNs from ``vlsn`` to ``first`` (exclusive). Raises ``Trimmed``
    unless the options allow leaving them out."""
    gone = f"VLSN {vlsn} was cleaned away; the log begins at VLSN {first}"
    if options.fail_on_trim:
        raise Trimmed(f"{gone}: read from {first}, or set failOnTrim to false", first=first) from None
    tell(f"{gone}, and so does this read")


def layout_of(source: Source) -> Layout:
    """Surveys a copy: finds its segments and its durable end. Raises ``Unreadable``, ``WrongVersion``, and
    ``Restoring`` for an incompletely restored copy."""
    if type(source) is DirectorySource:
        check_no_restore(PosixDisk(), source.path)
    return Layout(source, source.survey(0))


def _surveyed(asked: Asked, text: str) -> Layout | Unreadable:
    """Surveys the copy that ``text`` names. If the copy's node does not answer, returns the error."""
    source = source_of(text, asked)
    try:
        return layout_of(source)
    except Unreadable as error:
        if not isinstance(source, LiveSource):
            raise
        return error


class Copies:
    """The copies that answered, by their index among the sources. ``first`` and ``end`` are the group's first and
    last VLSN; both are 0 for a log without entries."""

    def __init__(self, layouts: dict[int, Layout], group: str = "") -> None:
        self.layouts = layouts
        self.group = group
        """The group's identity, or "" if no copy has it."""
        held = [layout for layout in layouts.values() if layout.first]
        self.first = min((layout.first for layout in held), default=0)
        self.end = max((layout.end for layout in held), default=0)

    @classmethod
    def of(cls, texts: Sequence[str], asked: Asked = AS_USUAL) -> Copies:
        """Surveys all copies; nodes are surveyed at the same time. A node that does not answer is reported and left
        out if another copy is available. Raises ``Unreadable``, ``BadArgument`` for copies of several groups, and
        ``WrongGroup`` for copies of another group."""
        # Directories are surveyed one after the other. Threads would take ten times as long for these many small reads,
        # because they pass the interpreter lock to each other.
        nodes = [text for text in texts if is_url(text)]
        of_nodes = dict(zip(nodes, at_once(partial(_surveyed, asked), nodes), strict=True))
        surveyed = [of_nodes[text] if text in of_nodes else _surveyed(asked, text) for text in texts]
        layouts = {index: found for index, found in enumerate(surveyed) if isinstance(found, Layout)}
        silent = [found for found in surveyed if isinstance(found, Unreadable)]
        if not layouts:
            raise silent[0]
        for error in silent:
            tell(f"{error}; the other sources are read")
        return cls(layouts, one_group({texts[index]: layout.group for index, layout in layouts.items()}, asked.group))

    @classmethod
    def asked(cls, options: ReadOptions) -> Copies:
        """Surveys the sources of a read, until one of them has the last requested VLSN and is as new as the options
        require. Raises as ``of`` and ``reaching``. Raises ``TooFarBehind`` if no node knows the VLSN that was last
        ``lag_max_s`` ago."""
        texts, asked = options.sources, options.asked
        last = max(options.to_vlsn if isinstance(options.to_vlsn, int) else 0, options.at_least)
        if options.lag_max_s is not None:
            given, token_file = ",".join(texts), asked.token_file or None
            with connect_sync(given, timeout_s=asked.give_up_s or LAG_S, token_file=token_file) as log:
                last = max(last, log.durable_vlsn(lag_max_s=options.lag_max_s))
        return cls.reaching(texts, last, asked) if last else cls.of(texts, asked)

    @classmethod
    def reaching(cls, texts: Sequence[str], vlsn: int, asked: Asked = AS_USUAL) -> Copies:
        """Surveys as ``of`` until one of the copies has ``vlsn`` durable; running nodes have ``LAG_S`` to reach it. If
        no copy reaches it, raises ``Lagging`` with the VLSN that was reached. A read that ended there would lose
        entries unnoticed."""
        deadline = time.monotonic() + LAG_S
        while True:
            copies = cls.of(texts, asked)
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
        """Returns the first and the last of the requested VLSNs that exist, inclusive. If none exists, the last is
        below the first. Raises ``Trimmed`` if the beginning was cleaned away, unless the options allow this."""
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
            left_out(first, self.first, options)
        return max(first, self.first), last

    def shares(self, first: int, last: int, target_bytes: int) -> list[Share]:
        """Divides ``first`` to ``last`` into pieces, and assigns each piece to a copy that has it. Raises
        ``Damaged`` if some VLSN is in no copy."""
        shares: list[Share] = []
        while first <= last:
            main = self.main(first)
            reach = min(self.layouts[main].end, last)
            shares += self._shared(main, first, reach, target_bytes)
            first = reach + 1
        return shares

    def main(self, vlsn: int) -> int:
        """Returns the copy with the highest end among those that have ``vlsn``. Raises ``Damaged`` if no copy has
        ``vlsn``."""
        having = {index: layout for index, layout in self.layouts.items() if layout.holds(vlsn, vlsn)}
        if not having:
            raise Damaged(f"no source has VLSN {vlsn}", vlsn=vlsn)
        return max(having, key=lambda index: (having[index].end, -index))

    def _shared(self, main: int, first: int, last: int, target_bytes: int) -> Iterator[Share]:
        """Distributes the pieces over all nodes that have these VLSNs. A directory is not combined with other
        sources."""
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
        """Returns the VLSN of a time, determined from the copy with the highest end. Raises ``Unreadable``."""
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
    """Returns whether a running node's copy may have ``vlsn`` by now. Only a survey can make sure whether the copy has
    the VLSN."""
    if not isinstance(source, LiveSource):
        return True
    try:
        return source.dtvlsn() >= vlsn
    except Unreadable:
        return False
