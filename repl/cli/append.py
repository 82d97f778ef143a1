"""``vlsnlog append``: a value, or the lines of a file or of stdin.

One entry a line: split at ``\\n`` only, nothing trimmed, an empty line is an entry, the last newline is
optional.  Lines go out as several atomic bodies, a few of them under way at once, acknowledged in order;
so what is acknowledged is always the first so many lines, and ``--skip-lines`` goes on behind them.  Lines are sent
exactly once: a body that got no answer goes out again, until its time is over.  With ``--producer`` that holds for any
number of runs, however each ended (``resume.py``).
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, BinaryIO, Final, NoReturn, Protocol

import click

from repl.cli.options import Command, acks_option, json_option, timeout_option, url_option
from repl.cli.resume import resume
from repl.cli.signals import run
from vlsn.errors import OutcomeUnknown, TooLarge, Unreachable, VlsnLogError, said_of
from vlsn.limits import ENTRY_BYTES_MAX, MIB

if TYPE_CHECKING:
    from repl.client.connect import Client

READ_BYTES: Final = MIB
BODY_LINES_MAX: Final = 8192
BODY_BYTES_MAX: Final = MIB
BODIES_UNDER_WAY_MAX: Final = 8
STDIN: Final = "-"
STARTING_S: Final = 3.0
"""From the start of a node's process until it answers, and some more on a busy machine."""
STARTING_PERIOD_S: Final = 0.1


class AppendMany(Protocol):
    """``Client.append_many``, or one that names what it appends."""

    async def __call__(self, values: list[bytes], *, keys: list[bytes] | None) -> tuple[int, int]: ...


@click.command(cls=Command)
@url_option
@click.option("--key", help="Key of every entry.")
@acks_option
@timeout_option
@click.option("--skip-lines", type=click.IntRange(min=0), default=0, help="Leave out the first N lines.")
@click.option(
    "--producer",
    metavar="NAME",
    help="Of a --file: run again with the same NAME, it goes on behind what is in the log.",
)
@click.option("--file", "path", type=click.Path(), help="Append the lines of this file; - is stdin.")
@json_option
@click.argument("value", required=False)
def append(
    url: list[str], key: str | None, acks: str, timeout: float, skip_lines: int, producer: str | None,
    path: str | None, as_json: bool, value: str | None,
) -> None:  # fmt: skip
    """Append VALUE, or one entry a line of FILE or of stdin (-), and print FIRST LAST."""
    if (value is None) == (path is None):
        raise click.UsageError("give one of VALUE, --file FILE, or - for stdin")
    if producer is not None and (path in (None, STDIN) or skip_lines):
        raise click.UsageError("--producer goes with --file FILE, and skips by itself what is in the log")
    key_bytes = os.fsencode(key) if key else None
    if value is not None and value != STDIN:
        if skip_lines:
            raise click.UsageError("--skip-lines goes with --file or -")
        lines: Iterator[list[bytes]] = iter([[os.fsencode(value)]])
        first, last = _run(url, acks, timeout, key_bytes, lines, skipped=None)
    elif path in (None, STDIN):
        first, last = _run(url, acks, timeout, key_bytes, bodies(_stdin(), skip_lines), skipped=skip_lines)
    else:
        assert path is not None
        with open(path, "rb") as source:
            lines = bodies(source, skip_lines)
            first, last = _run(url, acks, timeout, key_bytes, lines, skipped=skip_lines, producer=producer)
    try:
        click.echo(f'{{"first":{first},"last":{last}}}' if as_json else f"{first} {last}")
    except BrokenPipeError:
        raise
    except OSError as error:  # no refusal: that would be sent again
        raise OutcomeUnknown(
            f"appended as VLSN {first} to {last}, but that could not be printed: {said_of(error)}"
        ) from None


def _stdin() -> BinaryIO:
    """Without a buffer, whose lock a thread that still reads would hold while the interpreter ends."""
    return getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)


def bodies(source: BinaryIO, skip_lines: int = 0) -> Iterator[list[bytes]]:
    """The lines of ``source`` after the first ``skip_lines``, as lists that fit one body each; what a slow pipe
    gave so far does not wait for more.  Raises ``TooLarge`` for a line that no entry holds, behind all that
    comes before it."""
    for lines in _lines(source, skip_lines):
        body: list[bytes] = []
        size = 0
        for line in lines:
            if body and (len(body) == BODY_LINES_MAX or size + len(line) > BODY_BYTES_MAX):
                yield body
                body, size = [], 0
            body.append(line)
            size += len(line)
        if body:
            yield body


def _lines(source: BinaryIO, skip: int) -> Iterator[list[bytes]]:
    """The lines of each chunk, as far as they are whole."""
    number, rest = 0, b""
    while chunk := source.read(READ_BYTES):
        *whole, rest = (rest + chunk).split(b"\n")
        kept = whole[max(0, skip - number) :]
        number += len(whole)
        fitting = next((at for at, line in enumerate(kept) if len(line) > ENTRY_BYTES_MAX), len(kept))
        yield kept[:fitting]
        if fitting < len(kept):
            raise _too_long(number - len(kept) + fitting + 1)
        if number < skip:
            rest = rest[:1]  # of a line that is left out it counts only that there is one
        elif len(rest) > ENTRY_BYTES_MAX:
            raise _too_long(number + 1)
    if rest and number >= skip:
        yield [rest]


def _too_long(number: int) -> TooLarge:
    return TooLarge(f"line {number} is longer than {ENTRY_BYTES_MAX} bytes, the largest entry")


def _run(
    urls: list[str], acks: str, timeout_s: float, key: bytes | None, lines: Iterator[list[bytes]],
    *, skipped: int | None, producer: str | None = None,
) -> tuple[int, int]:  # fmt: skip
    return run(_append(urls, acks, timeout_s, key, lines, skipped, producer))


async def _append(
    urls: list[str], acks: str, timeout_s: float, key: bytes | None, lines: Iterator[list[bytes]], skipped: int | None,
    producer: str | None,
) -> tuple[int, int]:  # fmt: skip
    """The first and last VLSN of all lines that were not in the log; 0 0 for none.  ``skipped`` is None for a single
    value."""
    from repl.client.connect import connect

    progress = Progress(skipped, producer)
    many = skipped is not None
    async with connect(",".join(urls), acks=acks, timeout_s=timeout_s, exactly_once=many) as log:
        await require_a_node(log, urls)
        append_many: AppendMany = log.append_many
        if producer is not None:
            named = await resume(log, producer, key, lines)
            append_many = named.append_many
            if named.lines:
                click.echo(f"{named.lines} lines are in the log already, the last one at VLSN {named.last}", err=True)
        under_way: deque[tuple[int, asyncio.Task[tuple[int, int]]]] = deque()
        fault: TooLarge | None = None
        try:
            try:
                bodies = _read_ahead(lines)
                while (body := await _next_body(bodies, [task for _, task in under_way])) is not None:
                    keys = [key] * len(body) if key else None
                    under_way.append((len(body), asyncio.create_task(append_many(body, keys=keys))))
                    if len(under_way) == BODIES_UNDER_WAY_MAX:
                        progress.take(under_way[0][0], await under_way[0][1])
                        under_way.popleft()
            except TooLarge as error:  # a line of the input: what came before it is acknowledged first
                fault = error
            while under_way:
                progress.take(under_way[0][0], await under_way[0][1])
                under_way.popleft()
            if fault is not None:
                raise fault
        except asyncio.CancelledError:
            for _, task in under_way:
                task.cancel()
            await asyncio.gather(*(task for _, task in under_way), return_exceptions=True)
            raise
        except VlsnLogError as error:
            await log.close(flush=False)  # at once: nothing behind the failure may be logged
            outcomes = deque(await asyncio.gather(*(task for _, task in under_way), return_exceptions=True))
            while outcomes and isinstance(vlsns := outcomes[0], tuple):
                progress.take(under_way.popleft()[0], vlsns)
                outcomes.popleft()
            progress.fail(error, unknown=_unknown_lines([count for count, _ in under_way], outcomes))
    return progress.first, progress.last


async def _next_body(
    bodies: AsyncIterator[list[bytes]], under_way: list[asyncio.Task[tuple[int, int]]]
) -> list[bytes] | None:
    """The next body, None at the end; or, as soon as there is one, the failure of one under way: nothing behind it
    may be logged while this waits for a slow input."""
    reading = asyncio.ensure_future(anext(bodies, None))
    try:
        while not reading.done():
            await asyncio.wait({reading, *under_way}, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in under_way if task.done()]:
                under_way.remove(task)
                task.result()
        return reading.result()
    finally:
        reading.cancel()


def _unknown_lines(counts: list[int], outcomes: Iterable[tuple[int, int] | BaseException]) -> int:
    """Lines up to the last body that was, or may have been, logged."""
    reached = [index for index, each in enumerate(outcomes) if isinstance(each, OutcomeUnknown | tuple)]
    return sum(counts[: reached[-1] + 1]) if reached else 0


class Progress:
    """What is acknowledged so far: always the first lines after those skipped."""

    def __init__(self, skipped: int | None, producer: str | None = None) -> None:
        self._skipped = skipped
        self._producer = producer
        self.lines = 0
        self.first = 0
        self.last = 0

    def take(self, lines: int, vlsns: tuple[int, int]) -> None:
        self.first = self.first or vlsns[0]
        self.last = vlsns[1]
        self.lines += lines

    def fail(self, error: VlsnLogError, *, unknown: int) -> NoReturn:
        """Raises ``error`` with how far it came.  ``unknown``: lines behind that may have been logged."""
        if self._skipped is None:
            raise error
        done = self._skipped + self.lines
        where = f" (VLSN {self.first} to {self.last})" if self.lines else ""
        text = f"{error}; {self.lines} lines are acknowledged{where}"
        if self._producer is not None:
            kind = OutcomeUnknown if unknown else _Stopped
            raise kind(f"{text}; run it again with --producer {self._producer}, and none is appended twice")
        if unknown:
            raise OutcomeUnknown(
                f"{text}, and up to {unknown} after them may have been logged: look with `vlsnlog read` before "
                f"going on with --skip-lines {done} or more"
            )
        raise _Stopped(f"{text}; go on with --skip-lines {done}")


class _Stopped(VlsnLogError):
    """An append of many lines that was refused on its way."""


async def require_a_node(log: Client, urls: list[str]) -> None:
    """Waits for a node that is just being started; fails before the deadline when nothing answers."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + STARTING_S
    while all(isinstance(each, Unreachable) for each in await log.endpoints.statuses(urls)):
        if loop.time() > deadline:
            raise Unreachable(f"no node answers at {', '.join(urls)}; start one, or correct --url")
        await asyncio.sleep(STARTING_PERIOD_S)


async def _read_ahead(lines: Iterator[list[bytes]]) -> AsyncIterator[list[bytes]]:
    """Reads in threads: stdin may be a slow pipe, and appends under way must not wait for it.  Daemons: a Ctrl-C
    does not wait for the next line either."""
    loop = asyncio.get_running_loop()
    while True:
        body: asyncio.Future[list[bytes] | None] = loop.create_future()
        Thread(target=_read_body, args=(lines, loop, body), daemon=True).start()
        if (read := await body) is None:
            return
        yield read


def _read_body(
    lines: Iterator[list[bytes]], loop: asyncio.AbstractEventLoop, body: asyncio.Future[list[bytes] | None]
) -> None:
    settled = partial(_settle, body)
    try:
        settled = partial(settled, next(lines, None))
    except Exception as error:  # the thread's boundary
        settled = partial(settled, None, error)
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(settled)


def _settle(body: asyncio.Future[list[bytes] | None], read: list[bytes] | None, error: Exception | None = None) -> None:
    if body.done():
        return
    if error is not None:
        body.set_exception(error)
    else:
        body.set_result(read)
