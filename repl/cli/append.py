"""``vlsnlog append``: appends a value, or the lines of a file or of stdin.

Each line is one entry (``lines.py``). Lines are sent in several atomic appends (bodies), a few of them at once, and are
acknowledged in order. So the acknowledged lines are always the first ones, and ``--skip-lines`` continues after them.
Each line is logged exactly once: a body without an answer is sent again until it times out. With ``--producer`` this is
true even across several runs, however each of them ended (``resume.py``).
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

from repl.cli.lines import Body, Key, bodies
from repl.cli.options import (
    Command,
    FiniteRange,
    acks_option,
    durability_option,
    format_option,
    is_flagged,
    json_option,
    url_option,
)
from repl.cli.resume import resume
from repl.cli.signals import run
from vlsn.errors import BadBody, OutcomeUnknown, TooLarge, Unreachable, VlsnLogError, said_of
from vlsn.ids import NULL_VLSN, Term

if TYPE_CHECKING:
    from repl.api import Acks, Appended
    from repl.client.connect import Client

BODIES_UNDER_WAY_MAX: Final = 64
STDIN: Final = "-"
STARTING_S: Final = 3.0
"""The seconds from the start of a node's process until it answers, with a reserve for a busy machine."""
STARTING_PERIOD_S: Final = 0.1


class AppendBatch(Protocol):
    """The signature of ``Client.append_batch``. A function that appends under a producer's name has it, too."""

    async def __call__(self, values: list[bytes], *, keys: list[Key] | None) -> Appended: ...


@click.command(cls=Command)
@url_option
@click.option("--key", help="Key of every entry.")
@acks_option
@durability_option
@click.option(
    "--timeout",
    type=FiniteRange(0.001, 600),
    default=10.0,
    show_default=True,
    help="Seconds that one append may take.",
)
@click.option("--skip-lines", type=click.IntRange(min=0), default=0, help="Leave out the first N lines.")
@click.option(
    "--producer",
    metavar="NAME",
    help="With --file: if run again with the same NAME, continue after the lines that are in the log.",
)
@click.option("--file", "path", type=click.Path(), help="Append the lines of this file; - is stdin.")
@format_option("raw: a line is a value; json: the output of `read --format json` (its vlsn, term, time are ignored).")
@json_option
@click.argument("value", required=False)
def append(
    url: list[str], key: str | None, acks: str, durability: str | None, timeout: float, skip_lines: int,
    producer: str | None, path: str | None, format: str, as_json: bool, value: str | None,
) -> None:  # fmt: skip
    """Append VALUE, or one entry a line of FILE or of stdin (-), and print FIRST LAST.

    With --json print the HTTP answer. If several bodies were sent, print the first and last VLSN and the last term,
    durable if each body was durable, and the smallest number of nodes that synced a body.
    """
    if (value is None) == (path is None):
        raise click.UsageError("pass one of VALUE, --file FILE, or - for stdin")
    if producer is not None and (path in (None, STDIN) or skip_lines):
        raise click.UsageError("--producer needs --file FILE, and skips the lines in the log by itself")
    json = format == "json"
    lines_given = value is None or value == STDIN
    if json and key and lines_given:
        raise click.UsageError("--key is for raw lines; a JSON line has its own")
    key_bytes = os.fsencode(key) if key else None
    if value is not None and value != STDIN:
        if skip_lines or (json and is_flagged("format")):
            raise click.UsageError("--skip-lines and --format json need --file or -")
        single = Body([os.fsencode(value)], [key_bytes] if key_bytes else None)
        appended = run(_append(url, acks, durability, timeout, iter([single]), skipped=None))
    elif path in (None, STDIN):
        lines = bodies(_stdin(), skip_lines, key=key_bytes, json=json)
        appended = run(_append(url, acks, durability, timeout, lines, skipped=skip_lines))
    else:
        assert path is not None
        with open(path, "rb") as source:
            lines = bodies(source, skip_lines, key=key_bytes, json=json)
            work = _append(url, acks, durability, timeout, lines, skipped=skip_lines, producer=producer)
            appended = run(work)
    first, last = appended.first, appended.last
    try:
        click.echo(appended.document().decode() if as_json else f"{first} {last}")
    except BrokenPipeError:
        raise
    except OSError as error:  # not reported as a refusal, because the caller would then append again
        raise OutcomeUnknown(
            f"appended as VLSN {first} to {last}, but that could not be printed: {said_of(error)}"
        ) from None


def _stdin() -> BinaryIO:
    """Returns stdin without a buffer. A thread that reads a buffered stdin would hold the buffer's lock while the
    interpreter exits."""
    return getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)


async def _append(
    urls: list[str], acks: str, durability: str | None, timeout_s: float, lines: Iterator[Body],
    *, skipped: int | None, producer: str | None = None,
) -> Appended:  # fmt: skip
    """Returns one answer for all lines that were not in the log before; if there are none, its VLSNs are 0. ``skipped``
    is None if a single value is appended."""
    from repl.client.connect import acks_of, connect

    progress = Progress(acks_of(acks), skipped, producer)
    many = skipped is not None
    given = ",".join(urls)
    async with connect(given, acks=acks, durability=durability, timeout_s=timeout_s, exactly_once=many) as log:
        await require_a_node(log, urls)
        append_batch: AppendBatch = log.append_batch
        if producer is not None:
            named = await resume(log, producer, lines)
            append_batch = named.append_batch
            if named.lines:
                click.echo(f"{named.lines} lines are in the log already, the last one at VLSN {named.last}", err=True)
        under_way: deque[tuple[int, asyncio.Task[Appended]]] = deque()
        fault: TooLarge | BadBody | None = None
        try:
            try:
                ahead = _read_ahead(lines)
                while (body := await _next_body(ahead, [task for _, task in under_way])) is not None:
                    sending = append_batch(body.values, keys=body.keys)
                    under_way.append((len(body), asyncio.ensure_future(sending)))
                    if len(under_way) == BODIES_UNDER_WAY_MAX:
                        progress.take(under_way[0][0], await under_way[0][1])
                        under_way.popleft()
            except (TooLarge, BadBody) as error:  # an invalid line: the lines before it must be acknowledged first
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
            await log.close(flush=False)  # the client closes at once, so that nothing after the failure is logged
            outcomes = deque(await asyncio.gather(*(task for _, task in under_way), return_exceptions=True))
            while outcomes and not isinstance(appended := outcomes[0], BaseException):
                progress.take(under_way.popleft()[0], appended)
                outcomes.popleft()
            progress.fail(error, unknown=_unknown_lines([count for count, _ in under_way], outcomes))
    return progress.appended


async def _next_body(bodies: AsyncIterator[Body], under_way: list[asyncio.Task[Appended]]) -> Body | None:
    """Returns the next body, or None at the end. If a pending append fails, raises its error at once, so that nothing
    after it is logged while this function waits for a slow input."""
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


def _unknown_lines(counts: list[int], outcomes: Iterable[Appended | BaseException]) -> int:
    """Returns the number of lines up to the last body that is logged, or may be."""
    sure = [isinstance(each, BaseException) and not isinstance(each, OutcomeUnknown) for each in outcomes]
    reached = [index for index, refused in enumerate(sure) if not refused]
    return sum(counts[: reached[-1] + 1]) if reached else 0


class Progress:
    """The lines acknowledged so far, which are always the first lines after the skipped ones."""

    def __init__(self, acks: Acks, skipped: int | None, producer: str | None = None) -> None:
        self._acks = acks
        self._skipped = skipped
        self._producer = producer
        self._taken: list[Appended] = []
        self.lines = 0

    def take(self, lines: int, appended: Appended) -> None:
        self._taken = [self._joined([*self._taken, appended])]
        self.lines += lines

    @property
    def appended(self) -> Appended:
        return self._joined(self._taken)

    def _joined(self, taken: list[Appended]) -> Appended:
        """Joins several answers into one, which promises no more than the weakest of them."""
        from repl.api import Appended
        from vlsn.durability import weakest

        if not taken:
            return Appended(NULL_VLSN, NULL_VLSN, Term(0), True, 0, self._acks)
        return Appended(
            taken[0].first,
            taken[-1].last,
            taken[-1].term,
            all(each.durable for each in taken),
            min(each.synced for each in taken),
            self._acks,
            all(each.duplicate for each in taken),
            weakest(each.durability for each in taken),
        )

    def fail(self, error: VlsnLogError, *, unknown: int) -> NoReturn:
        """Raises ``error`` with the progress so far in its text. ``unknown`` is the number of further lines that may
        have been logged."""
        if self._skipped is None:
            raise error
        done = self._skipped + self.lines
        where = f" (VLSN {self.appended.first} to {self.appended.last})" if self.lines else ""
        text = f"{error}; {self.lines} lines are acknowledged{where}"
        if self._producer is not None:
            kind = OutcomeUnknown if unknown else _Stopped
            raise kind(f"{text}; run it again with --producer {self._producer}, and none is appended twice")
        if unknown:
            raise OutcomeUnknown(
                f"{text}, and up to {unknown} after them may have been logged: look with `vlsnlog read` before "
                f"you continue with --skip-lines {done} or more"
            )
        raise _Stopped(f"{text}; go on with --skip-lines {done}")


class _Stopped(VlsnLogError):
    """An append of many lines was refused after its first lines were logged."""

    retry_safe = False


async def require_a_node(log: Client, urls: list[str]) -> None:
    """Waits for a node that is just starting. Fails before the deadline if no node answers."""
    from repl.client.endpoints import speaks_otherwise

    loop = asyncio.get_running_loop()
    deadline = loop.time() + STARTING_S
    while True:
        answers = await log.endpoints.statuses(urls)
        if all(map(speaks_otherwise, answers)):
            raise Unreachable(f"no node answers at {', '.join(urls)}: {answers[0]}", tls=True)
        if not all(isinstance(each, Unreachable) for each in answers):
            return
        if loop.time() > deadline:
            raise Unreachable(f"no node answers at {', '.join(urls)}; start one, or correct --url")
        await asyncio.sleep(STARTING_PERIOD_S)


async def _read_ahead(lines: Iterator[Body]) -> AsyncIterator[Body]:
    """Reads the input in threads, because stdin may be a slow pipe and pending appends must not wait for it. The
    threads are daemons, so that Ctrl-C does not wait for the next line either."""
    loop = asyncio.get_running_loop()
    while True:
        body: asyncio.Future[Body | None] = loop.create_future()
        Thread(target=_read_body, args=(lines, loop, body), daemon=True).start()
        if (read := await body) is None:
            return
        yield read


def _read_body(lines: Iterator[Body], loop: asyncio.AbstractEventLoop, body: asyncio.Future[Body | None]) -> None:
    settled = partial(_settle, body)
    try:
        settled = partial(settled, next(lines, None))
    except Exception as error:  # an error of the thread is passed on to the reader
        settled = partial(settled, None, error)
    with suppress(RuntimeError):  # the event loop may be closed, in which case no task waits any more
        loop.call_soon_threadsafe(settled)


def _settle(body: asyncio.Future[Body | None], read: Body | None, error: Exception | None = None) -> None:
    if body.done():
        return
    if error is not None:
        body.set_exception(error)
    else:
        body.set_result(read)
