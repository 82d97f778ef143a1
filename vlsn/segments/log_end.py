"""The ``synced`` rule: which kind of end it is where a segment's readable frames stop. These functions have no side
effects.

Let X be the end of the consecutive whole frames at the segment's start. Records after X may state how far this segment
had been synced (all ends are exclusive). S is the highest of these statements:

    a whole frame behind X, its ``synced``           built after everything before that was synced
    the header of the next segment, its ``prev_end``  taken after all of this one was
    the checkpoint and the idle end in ``state``     written after their place was

    S > X                       DAMAGE   bytes that were once synced do not read back
    S <= X, zeros to the end    END      nothing more was written here, or none of it reached the medium
    S <= X, anything else       TAIL     not known to have been synced, even where whole frames follow: a power cut
                                         keeps any subset of the pages that were not

DAMAGE is never cut off. A TAIL is cut at X. A TAIL is *ambiguous*: its last group was either torn, or it was synced,
acknowledged and has rotted since. This node alone cannot know which. The vote floor is the remedy for that
(``vote_floor``).

    frames 1 and 2 synced together, then 3 and 4 (synced = 4200), the power cut keeps 4 but not 3:

    4096        4150        4200        4260        4320
    | frame 1   | frame 2   |  bad      | frame 4   | zeros         X = 4200, S = 4200: TAIL, 4 is no longer the log
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
    """Decides the kind of the end at ``stop`` (X above). ``synced`` is S, and ``zeros`` says whether only zeros
    follow."""
    if synced > stop:
        return Ending.DAMAGE
    return Ending.END if zeros else Ending.TAIL


def synced_end(
    number: int, stop: int, *, frames_behind: Iterable[int] = (), next_header: int = 0, stated: Iterable[Lsn] = ()
) -> int:
    """Returns S for segment ``number``. ``frames_behind`` are the ``synced`` fields of whole frames after ``stop``,
    ``next_header`` is the end that the next segment's header states (0: there is none), and ``stated`` are the ends in
    ``state``. A statement about a later segment means that all of this segment was synced."""
    ends = [0, next_header, *frames_behind]
    for at in stated:
        if lsn_file(at) == number:
            ends.append(lsn_offset(at))
        elif lsn_file(at) > number and not next_header:
            ends.append(stop + 1)
    return max(ends)
