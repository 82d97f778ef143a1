"""A child process of a node, for one consumer: ``python -m repl.cdc.child FD PARENT``.

1. The child asks the kernel to kill it when the node's process ends, even while the consumer computes.
2. The child lowers its own priority below its node's, so that the node's threads and the machine's other processes run
   first.
3. The child limits its memory before it imports the consumer's module.
4. Messages are sent and received on the socket ``FD``, each after its length (u32, little-endian).

Exit status: 0 stopped, 1 the consumer failed, 2 the node has ended or sent an invalid message.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import sys
import time
from struct import Struct
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
NICENESS: Final = 10
NICENESS_LOWEST: Final = 19
LENGTH: Final = Struct("<I")


class SocketPipe:
    """The child's end of a socket pair."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def receive(self) -> bytes:
        from repl.cdc.messages import MESSAGE_BYTES_MAX
        from vlsn.errors import BadBody

        size = LENGTH.unpack(self._exactly(LENGTH.size))[0]
        if not 1 <= size <= MESSAGE_BYTES_MAX:
            raise BadBody(f"a message of {size} bytes")
        return bytes(self._exactly(size))

    def send(self, message: bytes) -> None:
        self._end.sendall(LENGTH.pack(len(message)) + message)

    def _exactly(self, size: int) -> bytearray:
        taken = bytearray(size)
        view = memoryview(taken)
        while view:
            count = self._end.recv_into(view)
            if not count:
                raise EOFError("the node has gone")
            view = view[count:]
        return taken


def main(fd: int, parent: int) -> int:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the node's process ended before prctl took effect
        return 2
    inherited = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, min(inherited + NICENESS, NICENESS_LOWEST)))
    _below_a_real_time_node()
    # a terminal's Ctrl-C also reaches the node, which stops its children in order
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe = SocketPipe(socket.socket(fileno=fd))

    from repl.cdc import messages
    from repl.cdc.child.capture import Capture, load
    from vlsn.errors import VlsnLogError

    capture = Capture(pipe.send, load, sleep=time.sleep, monotonic_s=time.monotonic)
    try:
        first = pipe.receive()
        start = messages.of_node(first)
        if isinstance(start, messages.Start):
            _limit_memory(start.memory_bytes_max)
        capture.heard(first)
        while not capture.over:
            capture.heard(pipe.receive())
        return 1 if capture.failed else 0
    except (EOFError, BrokenPipeError, ConnectionResetError, VlsnLogError):
        return 2


def _limit_memory(bytes_max: int) -> None:
    """Limits this process's memory to ``bytes_max`` bytes, or to the node's own limit if that is lower.

    Only root may raise a hard limit or a priority. The child starts even if its node has a low limit or a low priority.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = bytes_max if hard == resource.RLIM_INFINITY else min(bytes_max, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _below_a_real_time_node() -> None:
    """Gives the child a lower priority than a node with real-time priority. A child process inherits its node's
    real-time priority, and niceness has no effect on such a priority."""
    policy = os.sched_getscheduler(0)
    if policy in (os.SCHED_FIFO, os.SCHED_RR):
        lowest = os.sched_get_priority_min(policy)
        if os.sched_getparam(0).sched_priority == lowest:
            policy, lowest = os.SCHED_OTHER, 0
        os.sched_setscheduler(0, policy, os.sched_param(lowest))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
