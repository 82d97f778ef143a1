"""Reads through any node that can serve.

Nodes answer with pages of whole blocks as the log stores them; the reader decodes the pages. If a node fails, the
reader asks the next node. A reader that follows the log also leaves a node that has nothing new, because that node
may be cut off from the others. If a node does not answer in time, the next node is asked as well, and the first
answer counts. Each page is read from one answer, so a change of node neither repeats nor skips an entry.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from operator import index
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote

import msgspec

from repl.api import ANY, END, Freshness, ProducerAt, Spans
from repl.api import LINEARIZABLE as ALL_ACKNOWLEDGED
from repl.client.answers import decoded, refused_by_half, right
from repl.client.backoff import retrying
from repl.client.endpoints import LOOK_IDLE_S, SILENT_S, Endpoints, silence_of, speaks_otherwise
from repl.client.page import Page, VlsnPlace, decode_blocks
from repl.web import ndjson
from repl.web.limits import LAG_S_MAX, READ_LIMIT_MAX
from repl.web.types import DURABLE as DURABLE_END
from repl.web.types import Response
from vlsn.errors import (
    BadArgument,
    BadBody,
    Forbidden,
    NotFound,
    NotInLog,
    TooFarBehind,
    Trimmed,
    Unauthorized,
    UnsupportedType,
    VlsnLogError,
    WrongGroup,
)
from vlsn.format.block import EntryKind
from vlsn.format.json_messages import Number
from vlsn.format.key_filter import KeyFilter
from vlsn.ids import NUMBER_MAX
from vlsn.state.producer_place import ProducerPlace
from vlsn.together import failure_of

T = TypeVar("T")

BLOCKS_TYPE: Final = "application/x-vlsnlog-blocks"
ANSWER_TIMEOUT_S: Final = 2.0
"""The seconds that a node may take for its answer, in addition to the wait that the reader requested. The time
doubles after each round in which no node answered, up to ``ANSWER_TIMEOUT_MAX_S``. A silent node is usually down,
but its link may also be slow."""
ANSWER_TIMEOUT_MAX_S: Final = 32.0
FOLLOW_WAIT_S: Final = 2.0
CONFIRM_S: Final = 2.0
"""The seconds that a node has to become as new as requested, before the next node is asked. At most half of the
client's timeout is used."""
Consistency = Literal["durable", "linearizable"]
"""The names of the guarantees that a read may request; see ``Client.read``."""
DURABLE: Final = "durable"
LINEARIZABLE: Final = "linearizable"
DATA_ONLY: Final = frozenset({int(EntryKind.DATA)})


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The requested entries, and how many seconds the node may wait for the first of them."""

    wait_s: float
    all_kinds: bool
    keys: KeyFilter | None

    @property
    def parameters(self) -> str:
        """The query parameters of the key filter. With a filter the node answers with lines instead of blocks."""
        if self.keys is None:
            return ""
        name = "key_prefix" if self.keys.prefix else "key"
        kinds = "kinds=all" if self.all_kinds else "kinds=data&txns=true"
        return f"limit={READ_LIMIT_MAX}&{kinds}&{name}={quote(self.keys.key, '')}&"


def freshness_of(consistency: Consistency = DURABLE, at_least: int = 0, lag_max_s: float | None = None) -> Freshness:
    """Makes a ``Freshness`` of a read's arguments. Raises ``BadArgument``."""
    if consistency not in (DURABLE, LINEARIZABLE):
        raise BadArgument(f"consistency: {consistency!r} is not one of {DURABLE}, {LINEARIZABLE}")
    if not 0 <= index(at_least) <= NUMBER_MAX:
        raise BadArgument(f"at_least is {at_least}; it is a VLSN, or 0")
    if lag_max_s is not None and not 0 <= lag_max_s <= LAG_S_MAX:
        raise BadArgument(f"lag_max_s is {lag_max_s}; it is 0 to {LAG_S_MAX:g} seconds")
    return Freshness(consistency == LINEARIZABLE, index(at_least), lag_max_s)


class _EntrySaid(msgspec.Struct):
    vlsn: Number


class _ProducerSaid(msgspec.Struct):
    next: Number
    first: Number
    last: Number
    term: Number
    durable: Number
    forgotten_to: Number


class Reader:
    """Reads pages from any node that can serve. The node that answered last is asked first."""

    def __init__(self, endpoints: Endpoints, *, give_up_s: float) -> None:
        self._endpoints = endpoints
        self._give_up_s = give_up_s
        self._confirm_s = max(min(CONFIRM_S, give_up_s / 2), 0.001)
        self._current = 0
        self._answer_s = ANSWER_TIMEOUT_S

    async def pages(
        self,
        from_vlsn: int | None,
        to_vlsn: int | None,
        *,
        consistency: Freshness = ANY,
        all_kinds: bool = False,
        keys: KeyFilter | None = None,
        after_term: int = 0,
    ) -> AsyncGenerator[Page, None]:
        """Yields pages up to ``to_vlsn`` or to the durable end of the first answer, whichever is less.

        A node that lags may take time to reach the highest VLSN that any answer reported as durable. The first
        request asks for the freshness ``consistency``; its answer contains the VLSN that the other nodes must reach.
        Raises ``Trimmed``, ``Damaged``. If nothing new came for ``give_up_s``, raises ``Unreachable``, the nodes'
        refusal, or ``TooFarBehind`` if the nodes have not reached the end.
        """
        at_least = max(consistency.at_least, self._endpoints.durable)
        ask = self._asking(replace(consistency, at_least=0))
        loop = asyncio.get_running_loop()
        end: int | None = None
        durable = 0
        place = VlsnPlace(_checked(from_vlsn), after_term)
        deadline = loop.time() + self._give_up_s
        await self._endpoints.look(self._give_up_s)
        while end is None or (place.vlsn is not None and place.vlsn <= end):
            lacking = end is not None and (place.vlsn or 0) > durable
            wait_s = min(FOLLOW_WAIT_S, max(0.0, deadline - loop.time())) if lacking else 0.0
            try:
                page = await self._page(place, ask, _Wanted(wait_s, all_kinds, keys), deadline)
            except VlsnLogError as error:
                if lacking and _may_pass(error):
                    raise self._lagging(end or 0, durable) from error
                raise
            durable = page.durable
            if end is None:
                end = max(page.durable, at_least)
                end = end if to_vlsn is None else min(end, to_vlsn)
                ask = ""
            moved = page.next_vlsn != place.vlsn
            if lacking and not moved:
                self._current += 1
                if loop.time() >= deadline:
                    raise self._lagging(end or 0, durable)
            place = place.after(page)
            yield _until(page, end)
            if moved:  # the time that the caller uses for a page does not count for the deadline
                deadline = loop.time() + self._give_up_s

    def _lagging(self, end: int, durable: int) -> TooFarBehind:
        return TooFarBehind(
            f"VLSN {end} was called durable, and no node has shown it within {self._give_up_s:g} s; the last one that "
            f"answered has VLSN {durable}"
        )

    async def follow(
        self,
        from_vlsn: int | None,
        *,
        after_term: int | None = None,
        all_kinds: bool = False,
        keys: KeyFilter | None = None,
        consistency: Freshness = ANY,
    ) -> AsyncGenerator[Page, None]:
        """Yields pages without end; some pages have no entries. Waits for entries to become durable, through the
        loss of any node, and for a node that is as new as ``consistency``. ``after_term`` is the term of the VLSN
        before ``from_vlsn``, if the caller has read it. Raises ``Trimmed``, ``NotInLog``."""
        place = VlsnPlace(_checked(from_vlsn), after_term or 0)
        if after_term is not None and (from_vlsn is None or from_vlsn < 2 or after_term < 1):
            raise BadArgument(
                f"after_term is {after_term}; it must be 1 or more, the term of the VLSN before from_vlsn"
            )
        await self._endpoints.look(self._give_up_s)
        while True:
            page = await self.next_page(place, all_kinds=all_kinds, keys=keys, consistency=consistency)
            if page is not None:
                place = place.after(page)
                yield page

    async def next_page(
        self,
        place: VlsnPlace,
        *,
        all_kinds: bool = False,
        keys: KeyFilter | None = None,
        consistency: Freshness = ANY,
    ) -> Page | None:
        """Waits for the page at ``place``, through the loss of any node. Returns None if the node that answered had
        nothing new for ``FOLLOW_WAIT_S``. Raises the same errors as ``follow``."""
        if (place.vlsn or 0) > consistency.at_least:
            # ``at_least`` is not needed, because the reader's place is past that VLSN
            consistency = replace(consistency, at_least=0)
        page = await self._page(place, self._asking(consistency), _Wanted(FOLLOW_WAIT_S, all_kinds, keys), inf)
        if page.next_vlsn != place.vlsn:
            return page
        self._current += 1
        await self._endpoints.look(0.0, every_s=LOOK_IDLE_S)  # the group may have removed the node, unknown to it
        return None

    async def vlsn_at(self, time_us: int) -> int:
        """Finds the first VLSN at which the highest block time so far is at or past ``time_us``, in the log of the
        node that is asked. Returns one past that node's durable end if there is no such VLSN. Raises the same errors
        as ``pages``."""
        found, durable = await self._look(f"at={time_us}&")
        return found or durable + 1

    async def first_vlsn(self) -> int:
        """Returns the first VLSN that the log of the asked node still has, or one past its durable end if it has
        none. Raises the same errors as ``pages``."""
        found, durable = await self._look("")
        return found or durable + 1

    async def durable_vlsn(self, consistency: Freshness) -> int:
        """Returns the durable end of a node that is as new as ``consistency``, or a higher durable VLSN known before.
        Raises the same errors as ``pages``."""
        await self._look(f"from={END}&{self._asking(consistency)}")
        return self._endpoints.durable

    async def _look(self, wanted: str) -> tuple[int, int]:
        """Reads one entry. Returns the entry's VLSN (0 if there is no such entry), and the durable end of the node
        that answered."""

        async def look(url: str) -> tuple[int, int]:
            answer = await self._get(f"{url}/v1/entries?{wanted}limit=1&kinds=all")
            (durable,) = _numbers(answer, DURABLE_END)
            return (decoded(answer, _EntrySaid, "entry").vlsn if answer.body else 0), durable

        await self._endpoints.look(self._give_up_s)
        return await self._retried(look)

    async def spans(
        self,
        from_vlsn: int | None,
        to_vlsn: int | None,
        *,
        bytes_each: int,
        entries_each: int,
        limit: int,
        after_term: int,
        consistency: Freshness,
    ) -> Spans:
        """Asks the master to divide a range into spans, because the master's durable end is the newest. If the
        master does not answer, asks another node. Raises ``Trimmed``, ``NotInLog``, and the errors of ``pages``."""
        begin = f"from={from_vlsn}&" if from_vlsn is not None else ""
        begin += f"to={to_vlsn}&" if to_vlsn is not None else ""
        begin += f"after_term={after_term}&" if after_term else ""
        wanted = f"{begin}{self._asking(consistency)}bytes={bytes_each}&entries={entries_each}&limit={limit}"

        async def ask(url: str) -> Spans:
            return decoded(await self._get(f"{url}/v1/spans?{wanted}"), Spans, "spans")

        until = asyncio.get_running_loop().time() + self._give_up_s
        try:
            return await ask(await self._endpoints.master())
        except (Trimmed, NotInLog, BadArgument):
            raise
        except VlsnLogError as error:
            return await self._retried(ask, until, known=error)

    async def told(self, path: str, kind: type[T], what: str) -> T | None:
        """Returns a node's answer for ``path``, or None if the name is not found. The answer includes every change
        that was acknowledged to any client before the call. Raises the same errors as ``producer``."""
        asked = self._asking(ALL_ACKNOWLEDGED)[:-1]

        async def tell(url: str) -> Response | None:
            try:
                return await self._get(f"{url}{path}?{asked}")
            except NotFound:
                return None

        answer = await self._retried(tell)
        return decoded(answer, kind, what) if answer is not None else None

    async def group(self) -> str:
        """Returns the name of the nodes' group. Raises the same errors as ``pages``."""

        async def ask(url: str) -> str:
            return str((await self._endpoints.status(url)).document.get("group", ""))

        return await self._retried(ask)

    async def producer(self, producer: int) -> ProducerAt:
        """Returns a producer's last submission and its next sequence. Raises ``Unreachable`` if no node served for
        ``give_up_s``, and ``NotMaster`` or ``NotYet`` if no node could confirm the answer."""

        async def ask(url: str) -> ProducerAt:
            answer = await self._get(f"{url}/v1/producers/{producer:016x}?timeout={self._confirm_s:.3f}")
            said = decoded(answer, _ProducerSaid, "place of a producer")
            place = ProducerPlace(said.next, said.first, said.last, said.term)
            return ProducerAt(place, said.durable, said.forgotten_to)

        return await self._retried(ask)

    async def _get(
        self, target: str, *, headers: Mapping[str, str] | None = None, wait_s: float | None = None
    ) -> Response:
        """Asks one node, which may wait ``wait_s`` seconds before it answers (None: as long as a confirmation may
        take). Raises the error in the node's answer."""
        timeout_s = (self._confirm_s if wait_s is None else wait_s) + self._answer_s
        return right(await self._endpoints.request("GET", target, headers=headers, timeout_s=timeout_s))

    def _asking(self, wanted: Freshness) -> str:
        """Returns query parameters that request a node as new as ``wanted``."""
        found = f"consistency={LINEARIZABLE}&" if wanted.linearizable else ""
        found += f"at_least={wanted.at_least}&" if wanted.at_least else ""
        found += f"lag_max={wanted.lag_max_s:.3f}&" if wanted.lag_max_s is not None else ""
        return f"{found}timeout={self._confirm_s:.3f}&" if found else ""

    async def _page(self, place: VlsnPlace, ask: str, wanted: _Wanted, deadline: float) -> Page:
        silent_s = wanted.wait_s + (self._confirm_s if ask else 0.0) + SILENT_S if wanted.wait_s else None
        page_of = partial(self._page_of, place, ask, wanted)
        return await self._retried(page_of, deadline, silent_s)

    async def _retried(
        self,
        ask: Callable[[str], Coroutine[Any, Any, T]],
        deadline: float | None = None,
        silent_s: float | None = None,
        known: VlsnLogError | None = None,
    ) -> T:
        """Asks all nodes, round by round, until ``deadline``; without a ``deadline``, for ``give_up_s``. Raises the
        error of the last round, or ``known`` if no round ended. If for ``give_up_s`` all nodes fail because of TLS,
        raises that error also before ``deadline``."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._give_up_s if deadline is None else deadline
        refused_until = inf

        fault = known

        async def ask_all() -> T:
            nonlocal fault
            try:
                return await self._of_any(ask, until, silent_s)
            except TimeoutError:
                raise fault or silence_of(self._endpoints) from None
            except VlsnLogError as error:
                fault = error
                raise

        async def pause(seconds: float) -> None:
            await asyncio.sleep(min(seconds, max(0.0, until - loop.time())))
            await self._endpoints.look(max(0.0, until - loop.time()))

        def may_pass(error: BaseException) -> bool:
            nonlocal refused_until
            refused_until = min(refused_until, loop.time() + self._give_up_s) if speaks_otherwise(error) else inf
            return _may_pass(error) and loop.time() < refused_until

        return await retrying(may_pass, until=until, sleep=pause)(ask_all)

    async def _of_any(
        self, ask: Callable[[str], Coroutine[Any, Any, T]], until: float = inf, silent_s: float | None = None
    ) -> T:
        """Asks all nodes in one round, one after the other. The next node is asked after ``silent_s``; a late answer
        of an earlier node still counts. Raises ``TimeoutError`` if no node has answered by ``until``."""
        loop = asyncio.get_running_loop()
        urls = self._endpoints.readable
        fault: VlsnLogError | None = None
        refusals: list[VlsnLogError] = []
        left = deque((self._current + turn) % len(urls) for turn in range(len(urls)))
        asked: dict[asyncio.Task[T], int] = {}
        try:
            while left or asked:
                if left:
                    index = left.popleft()
                    asked[asyncio.create_task(ask(urls[index]))] = index
                spare_s = max(0.0, until - loop.time())
                silence_s = spare_s if silent_s is None or not left else min(silent_s, spare_s)
                timeout_s = None if silence_s == inf else silence_s
                done, _ = await asyncio.wait(asked, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if not done and loop.time() >= until:
                    raise fault or TimeoutError
                for task in done:
                    index = asked.pop(task)
                    try:
                        answer = task.result()
                    except (Trimmed, NotInLog, BadArgument, WrongGroup):
                        raise
                    except (Unauthorized, Forbidden) as error:
                        refusals.append(error)
                    except VlsnLogError as error:
                        if fault is None or (speaks_otherwise(fault) and not speaks_otherwise(error)):
                            fault = error
                    else:
                        self._current = index
                        self._answer_s = ANSWER_TIMEOUT_S
                        return answer
        finally:
            for task in asked:
                task.cancel()
                task.add_done_callback(failure_of)
        self._answer_s = min(2 * self._answer_s, ANSWER_TIMEOUT_MAX_S)
        raise refused_by_half(refusals, len(urls)) or fault or refusals[0]

    async def _page_of(self, place: VlsnPlace, ask: str, wanted: _Wanted, url: str) -> Page:
        begin = f"from={place.vlsn}&" if place.vlsn is not None else ""
        if place.term:
            begin += f"after_term={place.term}&"
        response = await self._get(
            f"{url}/v1/entries?{begin}{ask}{wanted.parameters}wait={wanted.wait_s:.3f}",
            headers={"Accept": BLOCKS_TYPE if wanted.keys is None else ndjson.CONTENT_TYPE},
            wait_s=wanted.wait_s + (self._confirm_s if ask else 0.0),
        )
        durable, next_vlsn = _numbers(response, DURABLE_END, "Vlsnlog-Next")
        if wanted.keys is not None:
            entries = ndjson.decode_entries(bytes(response.body))
            return Page(entries, next_vlsn, durable, int(response.headers.get("Vlsnlog-Term", "0")))
        kinds = None if wanted.all_kinds else DATA_ONLY
        return self._page_with(memoryview(response.body), place, next_vlsn, durable, kinds)

    def _page_with(
        self, body: memoryview, place: VlsnPlace, next_vlsn: int, durable: int, kinds: frozenset[int] | None
    ) -> Page:
        entries, term = decode_blocks(body, from_vlsn=place.vlsn or 0, kinds=kinds)
        return Page(entries, next_vlsn, durable, term)


def _numbers(answer: Response, *headers: str) -> list[int]:
    try:
        return [int(answer.headers.get(header, "")) for header in headers]
    except ValueError:
        raise BadBody(f"an answer without {' and '.join(headers)}; is it a vlsnlog node?") from None


def _until(page: Page, end: int) -> Page:
    entries = page.entries
    if not entries or entries[-1].vlsn <= end:
        return page
    return Page([entry for entry in entries if entry.vlsn <= end], page.next_vlsn, page.durable, page.term)


def _checked(from_vlsn: int | None) -> int | None:
    if from_vlsn is not None and from_vlsn < 1:
        raise BadArgument(f"from_vlsn is {from_vlsn}; the first VLSN is 1")
    return from_vlsn


def _may_pass(error: BaseException) -> bool:
    """Returns whether the error is temporary, so that a later try may succeed."""
    return isinstance(error, VlsnLogError) and not isinstance(
        error,
        Trimmed | NotInLog | BadArgument | BadBody | NotFound | UnsupportedType | WrongGroup | Unauthorized | Forbidden,
    )
