"""A stream that reads directories: of stopped and running nodes, of copies, in buckets. URLs of nodes may be added to
the directories. All sources must be of one log.

    survey  ─►  entry before the offset: its term there  ─►  where the micro-batch ends  ─►  pieces  ─►  tasks

Offsets are the same as those of a stream of nodes. A directory does not report changes, so the driver surveys the
sources for each request. Surveys take at most a fifth of the time. The driver compares the survey with the offset:

    a copy has the entry before it, durable, of that term      continues
    a copy has that entry, of another term                     ``NotInLog``: not the log that was read
    no copy reaches it                                         waits if a node runs there, else ``NotInLog``
    all copies begin after the offset                          ``Trimmed``, or left out and counted (``failOnTrim``)

Only entries that a copy itself knows to be durable are read. So the stream never has an entry that is rolled back
later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from pyspark.sql.datasource import InputPartition
from tenacity import Retrying, retry_if_result, stop_after_attempt, wait_fixed

from repl.api import Span, Spans
from repl.audit.source import Unreadable
from repl.spark import copies as surveys
from repl.spark.batch import PiecePartition, rows_of_any
from repl.spark.columns import batch_of
from repl.spark.copies import TRIES, Copies, again
from repl.spark.errors import each_one_line, one_line, tell
from repl.spark.layout import Layout
from repl.spark.options import Asked
from repl.spark.places import placed
from repl.spark.scan import read_piece
from repl.spark.stream import PARTITION_BYTES_MIN, PARTITIONS, LogStreamReader, Offset
from repl.spark.stream_options import StreamOptions
from vlsn.errors import Damaged, Lagging, NotInLog, Trimmed
from vlsn.format.key_filter import KeyFilter
from vlsn.ids import NUMBER_MAX

R = TypeVar("R")

SURVEY_S: Final = 1.0
"""A survey of the sources is used again for this many seconds, or longer (see ``SURVEY_TIMES``)."""
SURVEY_TIMES: Final = 4
"""A survey is used again for this multiple of its own duration, if that exceeds ``SURVEY_S``: listing a bucket is
slow."""


class CopiesLog:
    """The sources as one log, for the driver of a stream."""

    def __init__(self, texts: Sequence[str], asked: Asked) -> None:
        self._texts = tuple(texts)
        self._asked = asked
        self._found: Copies | None = None
        self._good_until = 0.0
        self._checked: set[tuple[int, int]] = set()
        """Pairs of a VLSN and a term that were already compared with these copies."""

    def __reduce__(self) -> tuple[Any, ...]:
        return CopiesLog, (self._texts, self._asked)  # a task runs in another process, with its own clock

    def copies(self, *, reaching: int = 0) -> Copies:
        """Surveys the sources again if the last survey is old, or if no source had VLSN ``reaching``. Raises
        ``Unreadable``, ``Restoring``, ``BadArgument`` for copies of several groups, ``WrongGroup`` for another
        group."""
        if self._found is None or time.monotonic() >= self._good_until or self._found.end < reaching:
            begun = time.monotonic()
            self._found, self._checked = Copies.of(self._texts, self._asked), set()
            self._asked = replace(self._asked, group=self._found.group)
            self._good_until = time.monotonic() + max(SURVEY_S, SURVEY_TIMES * (time.monotonic() - begun))
        return self._found

    def asked(self, work: Callable[[], R]) -> R:
        """Returns the result of ``work``. If something cannot be read, ``work`` is repeated with a new survey (see
        ``again``)."""
        return again(work, self.forget)

    def forget(self) -> None:
        """Makes the next request survey the sources again."""
        self._found = None

    def group(self) -> str:
        """Returns the group of the sources; empty if no source reports it. Raises as ``copies``."""
        return self.asked(lambda: self.copies().group)

    def first_vlsn(self) -> int:
        return self.asked(lambda: self.copies().first or 1)

    def vlsn_at(self, time_us: int) -> int:
        return self.asked(lambda: self.copies().vlsn_at(time_us) if self.copies().first else 1)

    def spans(
        self,
        from_vlsn: int,
        to_vlsn: int = NUMBER_MAX,
        /,
        *,
        bytes_each: int = NUMBER_MAX,
        entries_each: int = NUMBER_MAX,
        after_term: int | None = None,
    ) -> Spans:
        """Returns one span, of which only the end is known. Raises ``Trimmed``, ``NotInLog``, and ``Damaged`` if
        some VLSN is in no source."""
        return self.asked(lambda: self._span(from_vlsn, to_vlsn, bytes_each, entries_each, after_term or 0))

    def _span(self, from_vlsn: int, to_vlsn: int, bytes_each: int, entries_each: int, term: int) -> Spans:
        copies = self.copies()
        if copies.first and from_vlsn < copies.first:
            raise Trimmed(f"VLSN {from_vlsn} was cleaned away", first=copies.first)
        self.check(copies, from_vlsn - 1, term)
        last = min(copies.end, to_vlsn, from_vlsn + entries_each - 1)
        if not copies.first or last < from_vlsn:
            return Spans(copies.first, copies.end)
        layout = copies.layouts[copies.main(from_vlsn)]
        last = min(last, layout.end)
        behind = layout.cut(from_vlsn, last, bytes_each) if bytes_each < layout.total else last + 1
        return Spans(copies.first, copies.end, (Span(behind, term_at(layout, behind - 1), 0),))

    def check(self, copies: Copies, vlsn: int, term: int) -> None:
        """Checks the entry at ``vlsn`` that a stream has read with ``term`` (0: unknown). Raises ``NotInLog`` unless
        the copies have the entry, may still receive it, or have cleaned it."""
        if term and (vlsn, term) not in self._checked:
            check_read(copies, len(self._texts), vlsn, term)
            self._checked.add((vlsn, term))


class CopiesStreamReader(LogStreamReader):
    """``spark.readStream.format("vlsnlog").load("DIRECTORY")``."""

    def __init__(self, options: StreamOptions, names: tuple[str, ...]) -> None:
        super().__init__(placed(options), names)
        self._copies = CopiesLog(self._options.sources, self._options.asked)

    def _log(self, group: str) -> CopiesLog:
        return self._copies

    def _asked_group(self) -> str:
        return self._copies.group()

    def _check_reached(self, group: str, at: Offset) -> None:
        self._copies.asked(lambda: self._copies.check(self._copies.copies(), at["vlsn"] - 1, at["term"]))

    @one_line
    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        return self._copies.asked(lambda: self._partitions(start, end))

    def _partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        group, last = self._group_of(end), end["vlsn"] - 1
        skipped = end.get("skipped", 0) - start.get("skipped", 0)
        begin, term = start["vlsn"] + skipped, 0 if skipped else start["term"]
        copies = self._reaching(last)
        if begin < copies.first:
            begin, term = self._left(begin, Trimmed("", first=copies.first)), 0
        if begin > last:
            return []
        self._copies.check(copies, begin - 1, term)
        self._copies.check(copies, last, end["term"])
        found: list[InputPartition] = []
        for share in copies.shares(begin, last, self._target(copies, begin, last)):
            found.append(PiecePartition(share.copy, share.piece, group, term))
            term = 0
        return found

    @each_one_line
    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, PiecePartition):
            return  # without partitions, Spark runs one empty task
        keys = KeyFilter.of(None, self._options.key_prefix)
        asked = replace(self._options.asked, group=partition.group)
        at, term, last = partition.piece.first, partition.term, partition.piece.last
        planned = [(partition.copy, partition.piece)]
        for left in reversed(range(TRIES)):
            try:
                if not planned:
                    copies = self._reaching(last)
                    if at < copies.first:
                        at, term = self._left(at, Trimmed("", first=copies.first)), 0
                    self._copies.check(copies, at - 1, term)
                    shares = copies.shares(at, last, self._options.partition_bytes)
                    planned = [(share.copy, share.piece) for share in shares]
                for copy, piece in planned:
                    for rows, behind in rows_of_any(self._options.sources, copy, piece, asked):
                        batch = batch_of(rows, at, last, self._names, keys)
                        at, term = behind, int(rows.headers["term"][-1])
                        if batch is not None:
                            yield batch
                return
            except (Damaged, Unreadable) as error:
                if not left:
                    raise
                tell(f"{error}; VLSN {at} is looked for again")
                planned = []
                self._copies.forget()

    def _reaching(self, last: int) -> Copies:
        """Surveys the sources until one has VLSN ``last``, the end of a micro-batch. Running nodes have some time to
        reach it. Raises ``Lagging``, ``NotInLog``."""
        tries = Retrying(
            retry=retry_if_result(lambda copies: copies.end < last),
            stop=stop_after_attempt(TRIES),
            wait=wait_fixed(surveys.PAUSE_S),
            retry_error_callback=lambda tried: tried.outcome and tried.outcome.result(),
        )
        copies: Copies = tries(self._copies.copies, reaching=last)
        if copies.end >= last:
            return copies
        raise Lagging(
            f"a micro-batch of this stream goes up to VLSN {last}, and {', '.join(self._options.sources)} by now only "
            f"to VLSN {copies.end}: name the copies that it was planned with"
        )

    def _target(self, copies: Copies, first: int, last: int) -> int:
        layout = copies.layouts[copies.main(first)]
        size = layout.bytes_of(first, min(last, layout.end))
        return min(max(size // PARTITIONS, PARTITION_BYTES_MIN), self._options.partition_bytes)


def check_read(copies: Copies, sources: int, vlsn: int, term: int) -> None:
    """Compares an entry that the stream has read with the copies that answered, of ``sources`` sources. Raises
    ``NotInLog``."""
    layouts = copies.layouts.values()
    may_come = len(layouts) < sources or any(layout.survey.live for layout in layouts)
    held, other = False, None
    for layout in layouts:
        if not 0 < layout.first <= vlsn <= layout.survey.last:
            continue
        try:
            found = term_at(layout, vlsn)
        except Damaged:
            held = True  # assumed, because a task that needs the entry reports the error
            continue
        held |= found == term
        if found != term and (other is None or vlsn <= layout.end):
            other = layout, found
    if other is not None and (vlsn <= other[0].end or not (held or may_come)):
        raise NotInLog(
            f"{other[0].source.text} has an entry of term {other[1]} at VLSN {vlsn}, and this stream has read one of "
            f"term {term} there: it is not the log that was read, or a person has given up a part of it; stream it "
            "with a new checkpoint",
            vlsn=vlsn,
            term=term,
            found=other[1],
        )
    last = max(layout.survey.last if layout.first else 0 for layout in layouts)
    if last < vlsn and not may_come:
        raise NotInLog(
            f"this stream has read up to VLSN {vlsn}, of term {term}, and its copies end with VLSN {last}: they are "
            "older than what was read; name those that it has read",
            vlsn=vlsn,
            term=term,
            found=0,
        )


def term_at(layout: Layout, vlsn: int) -> int:
    """Reads the term of a visible entry of one copy. Raises ``Damaged`` if the entry cannot be read."""
    for rows, behind in read_piece(layout.source, layout.holding(vlsn)):
        if behind > vlsn:
            firsts = rows.headers["first_vlsn"]
            return int(rows.headers["term"][int(firsts.searchsorted(vlsn, side="right")) - 1])
    raise Damaged(f"{layout.source.text}: VLSN {vlsn} cannot be read", vlsn=vlsn)
