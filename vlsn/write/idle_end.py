"""The idle end: a quiet log's statement of how far it is surely whole, without a sync."""

from __future__ import annotations

from vlsn.ids import Lsn, Vlsn, lsn
from vlsn.seams import Worker
from vlsn.state.state_store import IdleEnd, StateStore
from vlsn.write.lifecycle import Lifecycle
from vlsn.write.log_contents import LogContents
from vlsn.write.segment_roll import Placement


class IdleEndStatement:
    """The statement of the idle end."""

    def __init__(
        self, contents: LogContents, placement: Placement, state: StateStore, keeper: Worker, lifecycle: Lifecycle
    ) -> None:
        self._contents = contents
        self._placement = placement
        self._state = state
        self._keeper = keeper
        self._lifecycle = lifecycle
        self._stated: tuple[Lsn, Vlsn] | None = None

    def make(self) -> None:
        """Says in the state where the log ends, once for each end."""
        contents, tail, span = self._contents, self._placement.tail, self._contents.range
        if tail is None or not span.last or span.last_sync < span.last:
            return
        at = lsn(tail.number, tail.synced)
        durable = min(contents.dtvlsn, span.last_sync)
        if self._stated == (at, durable):
            return
        self._stated = (at, durable)
        end = IdleEnd(lsn=at, term=contents.history.last_term, vlsn=span.last, dtvlsn=durable)
        self._keeper.submit(lambda: self._state.save(idle_end=end), lambda _: None, self._lifecycle.store_failed)
