"""Transactions whose entries are staged (kept in the master's memory), piece by piece, by HTTP calls
(``repl/lead/transactions_http.py``).

    begin ─► stage, stage … ─► commit     each call is repeated until its timeout; the master recognises a repeat
                └─ abort, in the background; the master frees the transaction's slot and bytes at once

1. A begin carries the transaction's name. So if the answer is lost, the repeated begin does not begin a second one.
2. ``after`` is the number of entries that were staged before, so a piece that is sent again adds nothing.
3. The master may stage a piece that the client has given up. The next call therefore adds one to ``rewinds``: the
   master then removes the abandoned piece, or refuses it if it arrives later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from repl.api import Acks, Appended, ConsumerChange, SinkChange
from repl.client.answers import decoded, right
from repl.client.endpoints import Endpoints
from repl.client.identity import HandleNames
from repl.client.master_calls import MasterCalls
from repl.web.types import Network, Response
from vlsn.durability import GroupDurability
from vlsn.errors import (
    BadArgument,
    OutcomeUnknown,
    TooLarge,
    TransactionGone,
    Unreachable,
    VlsnLogError,
    WrongVersion,
)
from vlsn.format.producer_columns import HANDLE_SEQUENCE
from vlsn.format.submission import Transaction, check_transaction, cost_of
from vlsn.levels import TRANSACTIONS
from vlsn.limits import MIB
from vlsn.together import failure_of

PATH: Final = "/v1/transactions"
_WHAT: Final = "transaction"
ATTEMPT_S: Final = 3.0
"""The seconds that the client waits for a silent master, before it calls this node or another master again."""
SENT_BYTES_PER_S: Final = MIB
"""The client waits one second longer for each ``SENT_BYTES_PER_S`` bytes of a piece."""
GRACE_S: Final = 1.0
"""The client waits this many seconds past a commit's timeout for the node's own answer."""
GIVE_BACK_S: Final = 2.0
"""The seconds that the client tries to abort a transaction. If the aborts fail, the transaction times out at the
master."""
GIVEN_BACK_MAX: Final = 1_024
"""The most transactions that are being aborted: as many as a master can hold. Above this number, transactions time out
at the master."""
GIVEN_BACK_AT_ONCE_MAX: Final = 16
"""The most abort calls that may wait for their answers at once."""

_EMPTY_BYTES: Final = Transaction((), b"", (1, HANDLE_SEQUENCE)).bytes
_JSON: Final = {"Content-Type": "application/json"}
_BATCH: Final = {"Content-Type": "application/x-vlsnlog-batch"}
Sets = Mapping[str, Mapping[str, ConsumerChange | SinkChange]]
"""The ``positions`` and ``sinks`` that a commit sets, each by its name."""


class _Begun(msgspec.Struct):
    transaction: str
    bytes_max: int | None = None
    """The most bytes of a transaction. None from an older master, which does not send the field."""


class Stages:
    """The stages of one client: makes their names, calls the master, and aborts abandoned stages in the background."""

    def __init__(self, endpoints: Endpoints, network: Network, names: HandleNames, *, timeout_s: float) -> None:
        self.calls = MasterCalls(endpoints, network, timeout_s=timeout_s)
        self.endpoints = endpoints
        self._names = names
        self._given_back: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(GIVEN_BACK_AT_ONCE_MAX)

    def stage(self) -> Stage:
        return Stage(self, self._names.next())

    async def commit(self, parts: Sequence[tuple[bytes, int]], sets: Sets) -> Appended:
        """Logs the batches ``parts``, each with its number of entries, in one block, together with the values in
        ``sets``. The block is durable on a majority on return. Raises the same errors as ``Stage.stage`` and
        ``Stage.commit``."""
        stage, unlogged = self.stage(), True
        try:
            await stage.begin()
            for batch, count in parts:
                await stage.stage(batch, count)
            unlogged = False
            return await stage.commit(Acks.MAJORITY, sets)
        except VlsnLogError as error:
            unlogged = unlogged or error.retry_safe
            raise
        finally:
            if unlogged:
                self.give_back(stage)

    def give_back(self, stage: Stage) -> asyncio.Task[None] | None:
        """Aborts a transaction in the background, if a master may hold any of it. Returns the task; a caller need
        not wait for it."""
        if not stage.held or len(self._given_back) >= GIVEN_BACK_MAX:
            return None
        task = asyncio.create_task(self._give_back(stage), name="give a stage back")
        self._given_back.add(task)
        task.add_done_callback(self._was_given_back)
        return task

    async def close(self) -> None:
        """Waits up to ``GIVE_BACK_S`` for the aborts that are running, and cancels the rest."""
        if self._given_back:
            await asyncio.wait(self._given_back, timeout=GIVE_BACK_S)
        for task in self._given_back:
            task.cancel()

    async def check_level(self) -> None:
        """Checks the group's level. Raises ``WrongVersion`` if that level has no transactions."""
        self.calls.left()  # looks for the master again, because the master's answer contains the level
        await self.calls.at_master(_ask_nothing, again=True)
        if (level := self.endpoints.level) < TRANSACTIONS:
            raise WrongVersion(
                f"transactions need level {TRANSACTIONS}, the group is at level {level}: once "
                "all members run a vlsnlog that speaks it, `vlsnlog group upgrade`"
            )

    async def _give_back(self, stage: Stage) -> None:
        async with asyncio.timeout(GIVE_BACK_S), self._turns:
            await stage.abort()

    def _was_given_back(self, task: asyncio.Task[None]) -> None:
        self._given_back.discard(task)
        failure_of(task)  # ignores the error: a transaction that was not aborted times out at the master


class Stage:
    """One staged transaction. Make its calls one after the other."""

    def __init__(self, stages: Stages, id: int) -> None:
        self.held = False
        """True if a master may hold entries of this transaction."""
        self._calls = stages.calls
        self._endpoints = stages.endpoints
        self._id = id
        self._handle = ""
        self._bytes_max: int | None = None
        self.staged = 0
        """The number of entries that are staged for certain."""
        self._rewinds = 0

    def check_fits(self, entries: int, size: int) -> None:
        """Checks that a transaction fits one block, and that the block fits a segment of the master. ``size`` counts
        the bytes of the ``entries`` entries, with ``ENTRY_COST_BYTES`` for each. Raises ``TooLarge``."""
        check_transaction(entries + 1, size + _EMPTY_BYTES)
        cost = cost_of(entries + 1, size + _EMPTY_BYTES)
        if self._bytes_max is not None and cost > self._bytes_max:
            raise TooLarge(f"a transaction of {cost} bytes, where a segment of the log takes {self._bytes_max}")

    async def begin(self) -> None:
        """Begins the transaction, unless it has begun. Raises the master's refusal. After the timeout, raises the
        reason that kept the call waiting."""
        if self._handle:
            return
        self.held = True
        try:
            begun = await self._begin(f"?id={self._id:016x}")
        except BadArgument:  # an older master chooses the names itself
            begun = await self._begin("")
        self._handle, self._bytes_max = begun.transaction, begun.bytes_max

    async def stage(self, batch: bytes, count: int) -> None:
        """Stages a batch of ``count`` entries. Raises the errors of ``begin``, and ``TransactionGone``. After any error
        the transaction does not contain the batch, even if the master has staged it."""
        doubt = False

        async def ask(url: str, seconds: float) -> None:
            nonlocal doubt
            before, doubt = doubt, True
            try:
                await self._ask(url, f"/{self._handle}/entries?{self._behind()}", batch, _BATCH, seconds)
            except VlsnLogError as error:
                doubt = before or not error.retry_safe or isinstance(error, Unreachable)
                raise

        try:
            await self._calls.at_master(ask, again=True, try_s=ATTEMPT_S + len(batch) / SENT_BYTES_PER_S)
        except BaseException:
            self._rewinds += doubt
            raise
        self.staged += count

    async def commit(self, acks: Acks, sets: Sets, durability: GroupDurability | None = None) -> Appended:
        """Commits the transaction, together with the values in ``sets``. Raises the master's refusal,
        ``TransactionGone``, and ``OutcomeUnknown``."""
        asked = f"acks={acks}" if durability is None else f"acks={acks}&durability={durability}"
        if self._rewinds:
            asked = f"{asked}&{self._behind()}"
        body = msgspec.json.encode(sets) if any(sets.values()) else b""
        doubt = False

        async def ask(url: str, seconds: float) -> Response:
            nonlocal doubt
            path = f"/{self._handle}/commit?timeout={seconds:.3f}&{asked}"
            try:
                return await self._ask(url, path, body, _JSON, seconds + GRACE_S)
            except (Unreachable, OutcomeUnknown):
                doubt = True
                raise

        try:
            answer = await self._calls.at_master(ask, again=True, try_s=ATTEMPT_S)
        except VlsnLogError as error:
            if doubt and not isinstance(error, TransactionGone | OutcomeUnknown):
                raise OutcomeUnknown(f"asked, but not acknowledged: {error}; it may have been logged") from error
            raise
        self.held = False
        return decoded(answer, Appended, _WHAT)

    async def abort(self) -> None:
        """Makes the master drop the transaction. Raises the same errors as ``begin``."""
        await self.begin()
        await self._calls.call("DELETE", f"{PATH}/{self._handle}", again=True, answer_s=ATTEMPT_S)
        self.held = False

    def _behind(self) -> str:
        return f"after={self.staged}&rewinds={self._rewinds}" if self._rewinds else f"after={self.staged}"

    async def _begin(self, name: str) -> _Begun:
        answer = await self._calls.at_master(
            lambda url, seconds: self._ask(url, name, b"", _JSON, seconds), again=True, try_s=ATTEMPT_S
        )
        return decoded(answer, _Begun, _WHAT)

    async def _ask(self, url: str, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> Response:
        target = f"{url}{PATH}{path}"
        try:
            return right(await self._endpoints.request("POST", target, headers=headers, body=body, timeout_s=timeout_s))
        except TransactionGone:
            self.held = False
            raise
        except BadArgument as error:
            if not self._rewinds:
                raise
            why = "its master, of an older vlsnlog, takes nothing back, and what was given up of it may be staged there"
            raise TransactionGone(f"{why}: run it again in another one") from error


async def _ask_nothing(url: str, seconds: float) -> None:
    """Does nothing. This function is passed as a call when only the search for a master is wanted."""
