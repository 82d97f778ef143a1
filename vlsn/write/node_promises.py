"""Two promises in the node file of an open log: the level and the vote floor. The level is the version of the log's
formats. While the log ends below the vote floor, this node does not vote freely (``vote_floor``).

Each promise is stored and synced on the keeper's thread (the log's background thread). If the node file cannot be
written, the log fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from vlsn.ids import Term
from vlsn.levels import Levels
from vlsn.recover.vote_floor import with_floor_met
from vlsn.state.node_file import NodeFile
from vlsn.write.log_life import LogLife
from vlsn.write.log_view import LogView


class NodePromises:
    """The promises of one log. This object is used on the owner's thread."""

    def __init__(self, node_file: NodeFile, view: LogView, levels: Levels, life: LogLife) -> None:
        self._node_file = node_file
        self._view = view
        self._levels = levels
        self._life = life

    def store_level(self, level: int, done: Callable[[BaseException | None], None]) -> None:
        """Stores the promise of ``level``, and then calls ``done(None)``. The entry that sets the level must not be
        acknowledged earlier. Raises ``WrongVersion`` for a level that this binary does not support."""
        self._levels.check_log(level, "the next part of the group's log")
        self._life.keeper.submit(
            partial(self._write_level, level), lambda _: done(None), partial(self._level_failed, done)
        )

    def _write_level(self, level: int) -> None:
        record = self._node_file.record
        if level > record.level:
            self._node_file.replace(replace(record, level=level))

    def _level_failed(self, done: Callable[[BaseException | None], None], error: BaseException) -> None:
        self._failed(error)
        done(error)

    def meet_floor(self, term: Term) -> None:
        """Lowers the vote floor to the log's present end, synced, if the floor is higher. The caller knows that the log
        has everything that the master of ``term`` has, and that ``term`` is the stored term."""
        last = self._view.range.last_sync
        end = (int(self._view.history.term_of(last)), int(last))
        self._life.keeper.submit(partial(self._write_floor, term, end), lambda _: None, self._failed)

    def _write_floor(self, term: Term, end: tuple[int, int]) -> None:
        record = self._node_file.record
        met = with_floor_met(record, end)
        if record.term == term and met is not record:
            self._node_file.replace(met)

    def _failed(self, error: BaseException) -> None:
        self._life.fail(f"the node file could not be written: {error}", error)
