"""The ``state`` store of a directory, opened: one that cannot be read, or is of another time, is set aside.

It is kept for a person to look at; nothing in it keeps a node from starting (``index``: see ``stored_index``).
"""

from __future__ import annotations

from dataclasses import dataclass

from vlsn.errors import Damaged, WrongVersion
from vlsn.format.frame import FRAME_BYTES
from vlsn.format.records import CheckpointEnd
from vlsn.ids import NULL_VLSN, Lsn, Vlsn
from vlsn.levels import named
from vlsn.seams import Seams
from vlsn.state.state_store import Checkpoint, IdleEnd, StateRecord, StateStore, check_level

STATE_NAME = "state"


@dataclass(slots=True)
class OpenState:
    """``state`` and what it said when it was opened."""

    store: StateStore
    checkpoint: Checkpoint | None
    record: StateRecord | None
    idle: IdleEnd | None
    lost: bool = False
    """True where it was not there, or could not be used, and was made anew: empty."""

    @property
    def stated(self) -> list[Lsn]:
        """Ends up to which the log had been synced."""
        ends = [self.idle.lsn] if self.idle is not None else []
        if self.checkpoint is not None:
            ends.append(Lsn(self.checkpoint.end_lsn + FRAME_BYTES + CheckpointEnd.LAYOUT.size))
        return ends

    @property
    def stated_last(self) -> Vlsn:
        """A VLSN that was in the log, synced here and durable: no rollback has taken it away since."""
        synced = max(
            self.checkpoint.last_vlsn if self.checkpoint is not None else NULL_VLSN,
            self.idle.vlsn if self.idle is not None else NULL_VLSN,
        )
        return Vlsn(min(synced, self.dtvlsn))

    @property
    def last_term(self) -> int:
        """The term of the newest entry that the record is derived from."""
        return self.record.term_runs[-1][0] if self.record is not None and self.record.term_runs else 0

    @property
    def dtvlsn(self) -> int:
        return max(
            self.checkpoint.dtvlsn if self.checkpoint is not None else 0,
            self.idle.dtvlsn if self.idle is not None else 0,
        )


def open_state(seams: Seams, directory: str, map_bytes: int, notes: list[str]) -> OpenState:
    """Raises ``WrongVersion``."""
    path = f"{directory}/{STATE_NAME}"
    lost = not seams.stores.exists(path)
    try:
        store = StateStore(seams.stores.open(path, map_bytes=map_bytes))
        try:
            record = store.record()
            if record is not None:
                check_level(record.level, seams.levels)
            return OpenState(store, store.checkpoint(), record, store.idle_end(), lost)
        except WrongVersion as error:
            store.close()
            raise named(error, path) from None
        except BaseException:
            store.close()
            raise
    except Damaged as error:
        return _fresh_state(seams, path, map_bytes, notes, f"could not be read ({error})")


def replace_state(
    seams: Seams, directory: str, map_bytes: int, notes: list[str], *, old: OpenState, why: str
) -> OpenState:
    """Makes an empty one instead of ``old``, which was readable but cannot be of this log."""
    old.store.close()
    return _fresh_state(seams, f"{directory}/{STATE_NAME}", map_bytes, notes, why)


def _fresh_state(seams: Seams, path: str, map_bytes: int, notes: list[str], why: str) -> OpenState:
    aside = seams.stores.set_aside(path)
    notes.append(f"state {why}; set aside as {aside}")
    return OpenState(StateStore(seams.stores.open(path, map_bytes=map_bytes)), None, None, None, lost=True)
