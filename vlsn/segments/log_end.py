"""The ``synced`` rule: the kind of end where a segment's readable frames stop.  Pure.

Let X be where the frames that follow one another from the start end.  Something *later* than X may say how far
this segment had been synced (all ends are exclusive); S is the highest of these:

    a whole frame behind X, its ``synced``           built after everything before that was synced
    the header of the next segment, its ``prev_end``  taken after all of this one was
    the checkpoint and the idle end in ``state``     written after their place was

    S > X                       DAMAGE   bytes that were once synced do not read back
    S <= X, zeros to the end    END      nothing more was written here, or none of it reached the medium
    S <= X, anything else       TAIL     not known to have been synced, even where whole frames follow: a power cut
                                         keeps any subset of the pages that were not

DAMAGE is never cut away.  A TAIL is cut at X.  It is *ambiguous*: its last group was torn, or synced, acknowledged
and rotted since; nothing on this node can tell.  That is what the vote floor is for (``vote_floor``).

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
    """Decides what ``stop`` (X above) is; ``synced`` is S, ``zeros`` whether nothing but zeros follows."""
    if synced > stop:
        return Ending.DAMAGE
    return Ending.END if zeros else Ending.TAIL


def synced_end(
    number: int, stop: int, *, frames_behind: Iterable[int] = (), next_header: int = 0, stated: Iterable[Lsn] = ()
) -> int:
    """S for segment ``number``: ``frames_behind`` are the ``synced`` fields of whole frames behind ``stop``,
    ``next_header`` the end that the next segment's header names (0: there is none), ``stated`` what ``state``
    says, as ends.  A statement about a later segment says that all of this one was synced."""
    ends = [0, next_header, *frames_behind]
    for at in stated:
        if lsn_file(at) == number:
            ends.append(lsn_offset(at))
        elif lsn_file(at) > number and not next_header:
            ends.append(stop + 1)
    return max(ends)
