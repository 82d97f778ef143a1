"""Which signed calls a node has answered, so that none counts twice. No clock is involved.

    n2 (process A)  n=17, session 5c…   ─►  no session that this node gave process A: 401 ``stale-session``
    n2 (process A)  n=1, session 9e…    ─►  taken; 9e… is A's session from now on
    the same bytes again                ─►  n=1 was taken: refused
    n=3 before n=2                      ─►  both taken, each once, as long as they are fewer than 1,024 apart

1. A session is random and given by this process. So a call that was recorded before its start names an unknown session.
2. The session that is offered stays the same until it is used. So a flood of old calls costs no memory, and calls that
   one process makes at once all get the same session.
3. Only a call that is signed with the offered session replaces a live session, so a replayed call never ends one.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from vlsn.errors import StaleSession, Unauthorized
from vlsn.seams import Random

WINDOW = 1_024
"""How far behind the highest number of its session a call may be."""
CLI = "@cli"
"""The sender of commands. No member can have this name."""
PROCESSES_MAX = 4
"""Processes of one member with a live session; the one that was unused the longest goes."""
CLI_PROCESSES_MAX = 64
SENDERS_MAX = 256
_MASK = (1 << WINDOW) - 1


@dataclass(slots=True)
class _Session:
    id: str
    highest: int = 0
    window: int = 0
    """Bit k: number ``highest - k`` was taken."""

    def takes(self, n: int) -> bool:
        """Takes the number ``n``, unless it was taken, or is too far behind to tell."""
        if n > self.highest:
            ahead = n - self.highest
            self.window = ((self.window << ahead) | 1) & _MASK if ahead < WINDOW else 1
            self.highest = n
            return True
        back = self.highest - n
        if back >= WINDOW or self.window >> back & 1:
            return False
        self.window |= 1 << back
        return True


@dataclass(slots=True)
class _Sender:
    live: OrderedDict[str, _Session]
    offered: OrderedDict[str, str]


class Sessions:
    """The sessions that one process has given, by sender and by the sender's process."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._senders: OrderedDict[str, _Sender] = OrderedDict()

    def take(self, sender: str, process: str, session: str, n: int) -> None:
        """Takes a call whose signature is right. Raises ``StaleSession`` with the session to use, and ``Unauthorized``
        for a call that was taken before."""
        known = self._sender(sender)
        most = CLI_PROCESSES_MAX if sender == CLI else PROCESSES_MAX
        live = known.live.get(process)
        if live is None or live.id != session:
            if known.offered.get(process) != session:
                raise StaleSession(
                    f"{sender}'s process {process} has no such session here", session=self._offer(known, process, most)
                )
            del known.offered[process]
            live = known.live[process] = _Session(session)
        known.live.move_to_end(process)
        if len(known.live) > most:
            known.live.popitem(last=False)
        if not live.takes(n):
            raise Unauthorized(f"call {n} of {sender}'s session has come before")

    def _offer(self, known: _Sender, process: str, most: int) -> str:
        offered = known.offered.get(process)
        if offered is None:
            offered = known.offered[process] = f"{self._random.u64():016x}{self._random.u64():016x}"
            if len(known.offered) > most:
                known.offered.popitem(last=False)
        return offered

    def _sender(self, name: str) -> _Sender:
        known = self._senders.get(name)
        if known is None:
            known = self._senders[name] = _Sender(OrderedDict(), OrderedDict())
        self._senders.move_to_end(name)
        if len(self._senders) > SENDERS_MAX:
            self._senders.popitem(last=False)
        return known
