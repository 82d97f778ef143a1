"""The ``synced`` rule. The rule decides whether a segment's log ends where its readable frames stop, or is damaged
there. The functions have no side effects.

Let X be the end of the consecutive valid frames from the segment's start on. Some records outside of these frames state
an end up to which this segment was synced (all ends are exclusive). Let S be the highest such end. The records are:

    the ``synced`` field of a valid frame after X     the frame was built after everything up to ``synced`` was synced
    ``prev_end`` in the next segment's header         the next segment was used after this one was synced
    the checkpoint and the idle end in ``state``      they were stored after the log was synced up to them

    S > X                       DAMAGE   bytes that were once synced do not read back
    S <= X, zeros to the end    END      nothing more was written here, or nothing of it reached the medium
    S <= X, anything else       TAIL     maybe never synced, even if valid frames follow: after a power cut, any of the
                                         unsynced pages may be there

DAMAGE is never cut off. A TAIL is cut at X. A TAIL is *ambiguous*: its last group of blocks was either torn by a crash,
or synced, acknowledged and rotten since. A node alone cannot distinguish a torn group from a rotten one. The remedy is
the vote floor (``vote_floor``).

    frames 1 and 2 synced together, then 3 and 4 (synced = 4200), the power cut keeps 4 but not 3:

    4096        4150        4200        4260        4320
    | frame 1   | frame 2   |  bad      | frame 4   | zeros         X = 4200, S = 4200: TAIL, frame 4 is cut off
    | frame 1   |  bad      | frame 3   | frame 4   | zeros         X = 4150, S = 4200: DAMAGE
    | frame 1   |  bad      |  bad      |  zeros …                  X = 4150, S = 0:    TAIL
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from vlsn.ids import Lsn, lsn_file, lsn_offset


class Ending(Enum):
    END = "end"
    TAIL = "tail"
    DAMAGE = "damage"


def ending(stop: int, *, synced: int, zeros: bool) -> Ending:
    """Decides what the end of the readable frames at ``stop`` (X above) is. ``synced`` is S, and ``zeros`` says whether
    only zeros follow."""
    if synced > stop:
        return Ending.DAMAGE
    return Ending.END if zeros else Ending.TAIL


def synced_end(
    number: int, stop: int, *, frames_behind: Iterable[int] = (), next_header: int = 0, stated: Iterable[Lsn] = ()
) -> int:
    """Returns S (the highest stated synced end) for segment ``number``. ``frames_behind`` are the ``synced`` fields of
    valid frames after ``stop``. ``next_header`` is the end that the next segment's header states (0: there is no next
    segment). ``stated`` are the ends in ``state``. A stated end in a later segment means that all of this segment was
    synced."""
    ends = [0, next_header, *frames_behind]
    for at in stated:
        if lsn_file(at) == number:
            ends.append(lsn_offset(at))
        elif lsn_file(at) > number and not next_header:
            ends.append(stop + 1)
    return max(ends)
