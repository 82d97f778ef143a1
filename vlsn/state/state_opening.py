"""Opens the ``state`` store of a directory. A store that cannot be read, or that does not belong to this log, is set
aside.

A store that was set aside is kept, so that a person can look at it. A bad ``state`` store never keeps a node from
starting. ``stored_index`` has the rules for the store of the index.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlsn.errors import Damaged, WrongVersion
from vlsn.ids import NULL_VLSN, Vlsn
from vlsn.levels import named
from vlsn.seams import Seams
from vlsn.state.state_store import StateRecord, StateStore, StoredEnds, check_level

STATE_NAME = "state"


@dataclass(slots=True)
class OpenState(StoredEnds):
    """The open ``state`` store, and the content that it had when it was opened."""

    store: StateStore
    record: StateRecord | None
    lost: bool = False
    """True if the store was missing or could not be used, so that a new, empty store was made."""

    @property
    def stated_last(self) -> Vlsn:
        """A VLSN that was in the log, synced on this node and durable. No rollback can have removed a durable VLSN
        since."""
        synced = max(
            self.checkpoint.last_vlsn if self.checkpoint is not None else NULL_VLSN,
            self.idle.vlsn if self.idle is not None else NULL_VLSN,
        )
        return Vlsn(min(synced, self.dtvlsn))

    @property
    def last_term(self) -> int:
        """The term of the newest entry from which the state record is derived."""
        return self.record.term_runs[-1][0] if self.record is not None and self.record.term_runs else 0


def open_state(seams: Seams, directory: str, map_bytes: int, notes: list[str]) -> OpenState:
    """Opens the store, or makes a new store in its place. Raises ``WrongVersion`` for a state record of a level that
    this binary cannot read."""
    path = f"{directory}/{STATE_NAME}"
    lost = not seams.stores.exists(path)
    try:
        store = StateStore(seams.stores.open(path, map_bytes=map_bytes))
        try:
            record = store.record()
            if record is not None:
                check_level(record.level, seams.levels)
            return OpenState(store.checkpoint(), store.idle_end(), store, record, lost)
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
    """Makes an empty store in place of ``old``, which can be read but cannot belong to this log."""
    old.store.close()
    return _fresh_state(seams, f"{directory}/{STATE_NAME}", map_bytes, notes, why)


def _fresh_state(seams: Seams, path: str, map_bytes: int, notes: list[str], why: str) -> OpenState:
    aside = seams.stores.set_aside(path)
    notes.append(f"state {why}; set aside as {aside}")
    return OpenState(None, None, StateStore(seams.stores.open(path, map_bytes=map_bytes)), None, lost=True)
