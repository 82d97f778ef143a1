"""A process that appends to an embedded log and says what became of each value; traced and hurt by strace.

python -m tests.jepsen.appending DIR THREADS VALUES

OPEN                     the log is open
ACK vlsn value           ``append`` returned
REFUSED value            it raised what says that nothing was logged
UNKNOWN value            it raised what does not
ENDED clean|failed Type  how the log was closed, or why it could not be opened
"""

from __future__ import annotations

import sys
import threading

from vlsn import Log
from vlsn.errors import VlsnLogError
from vlsn.state.options import LogOptions

OPTIONS = LogOptions(segment_bytes=64 << 10, checkpoint_bytes=96 << 10)


def main(directory: str, threads: int, values: int) -> int:
    saying = threading.Lock()

    def say(line: str) -> None:
        with saying:
            print(line, flush=True)

    def write(log: Log, name: int) -> None:
        for number in range(values):
            value = f"{name}/{number}".ljust(300, ".")
            try:
                say(f"ACK {log.append(value.encode())[0]} {value}")
            except VlsnLogError as error:
                say(f"{'REFUSED' if error.retry_safe else 'UNKNOWN'} {value}")

    try:
        log = Log.open(directory, OPTIONS)
    except (VlsnLogError, OSError) as error:
        say(f"ENDED failed {type(error).__name__}")
        return 1
    say("OPEN")
    writers = [threading.Thread(target=write, args=(log, name)) for name in range(threads)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    try:
        log.checkpoint()
        log.close()
    except VlsnLogError as error:
        say(f"ENDED failed {type(error).__name__}")
        log.close()
        return 1
    say("ENDED clean")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
