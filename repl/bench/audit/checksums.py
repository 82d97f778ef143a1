"""The ceiling: two processes that read files piece by piece and call a C function for the checksum of each piece.

    python -m repl.bench.audit.checksums        a JSON list of files a line, their checksum a line back

The function is ``crc32c`` of the package that the log itself uses, which takes the processor's instructions for it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import IO, Self

from crc32c import crc32c

PIECE_BYTES = 1 << 20


def checksum(paths: Sequence[str]) -> int:
    """Returns the crc32c of the files, one behind the other."""
    total, piece = 0, bytearray(PIECE_BYTES)
    view = memoryview(piece)
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while got := file.readinto(piece):
                total = crc32c(view[:got], total)
    return total


class ChecksumLoop:
    """Processes that stay up, one a core; each reads its share of the files."""

    def __init__(self, cores: Sequence[int]) -> None:
        self._cores = cores

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "repl.bench.audit.checksums"]
        self._processes = [
            subprocess.Popen(
                ["taskset", "-c", str(core), *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for core in self._cores
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            _pipe(process.stdin).close()
            process.wait()

    def seconds(self, root: Path) -> float:
        """Returns how long all of them took over the segments in ``root``, from the first's start to the last's end."""
        files = sorted(root.glob("*/*.vlog"), key=lambda path: (-path.stat().st_size, str(path)))
        shares = [[str(path) for path in files[at :: len(self._cores)]] for at in range(len(self._cores))]
        begun = monotonic()
        for process, share in zip(self._processes, shares, strict=True):
            pipe = _pipe(process.stdin)
            pipe.write(json.dumps(share) + "\n")
            pipe.flush()
        for process in self._processes:
            _pipe(process.stdout).readline()
        return monotonic() - begun


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def main() -> None:
    for line in sys.stdin:
        print(checksum(json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
