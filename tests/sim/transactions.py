"""Transactions in a simulation: clients that stage and commit over plain HTTP, and the checks of their outcomes.

    begin ─► stage, stage … ─► commit ─► repeated, at any node, until an answer is certain
                    └─► abort, or left to expire

Each transaction has one of three outcomes.  *Whole*: a commit was acknowledged, and its values are side by side from
the answer's first VLSN on, with its COMMIT after them.  *Nowhere*: no commit was ever sent, or a node has answered that
nothing was logged.  Otherwise *unknown*: whole, or nowhere.  On every reader's page, too, no transaction is cut.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from vlsn.errors import VlsnLogError
from vlsn.format.block import BlockHeader, Entry, EntryKind, entries
from vlsn.format.records import CommitEntry
from vlsn.state.small_state import Kept

if TYPE_CHECKING:
    from tests.sim.clients import Clients
    from tests.sim.group import SimNode
    from tests.sim.watch import Watch
    from vlsn.index.range import VlsnRange

RATE = 0.5
"""The share of the seeds with transactions."""
CLIENTS = 4
SIZES = (12, 150, 900, 4000)
CALLS_MAX, VALUES_MAX = 3, 3
PAUSES_S = (0.0, 0.01, 0.1, 1.0)
ABORTS, LEAVES = 0.1, 0.05
"""The shares that are aborted, and that are begun and abandoned."""
LATER, ENDED_MAX = 0.3, 12
"""The rate at which a commit of known outcome is repeated, and the most of them."""
ASKS_MAX = 60
TIMEOUT_S = 1.5
AGAIN_S = 0.5
JSON = {"Content-Type": "application/json"}
LINES = {"Content-Type": "application/x-ndjson"}
GONE, CLOSED, STALE = "transaction-gone", "transaction-closed", "stale-term"
FORGOTTEN = frozenset(("out-of-sequence", "unknown-producer", "duplicate-forgotten"))
NEVER = FORGOTTEN | frozenset(
    (CLOSED, "bad-argument", "bad-body", "too-large", "not-found", "not-allowed", "wrong-version")
)
"""Answers that a commit never receives if it is repeated unchanged."""
KINDS = frozenset((int(EntryKind.DATA), int(EntryKind.COMMIT)))
PAGE_ENTRIES = 1000
"""The most lines of a page; a page of that many may end anywhere."""


def are_there(seed: int) -> bool:
    """Says whether that seed has transactions. This is drawn separately, so that other seeds run as before."""
    return Random(f"transactions/{seed}").random() < RATE


@dataclass(slots=True)
class Sent:
    """One transaction, as its client knows it."""

    values: list[bytes]
    first: int = 0
    """The VLSN in an acknowledgement."""
    nowhere: str = ""
    """The reason why the transaction must be absent from the log."""


class Transactions:
    """The record of one simulation: the durable transactions, and the answers that clients received."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.ends: dict[int, int] = {}
        """The VLSNs of durable COMMITs, by the VLSNs of their first entries."""
        self.inside: set[int] = set()
        """The durable VLSNs after which a transaction continues."""
        self.sent: list[Sent] = []
        self._small: list[tuple[int, dict[str, Kept]]] = [(0, {})]
        """The small state as of each VLSN that set some of it, from the first on."""
        self._passed: dict[str, list[range]] = {}
        """VLSNs that a consumer has skipped, or was about to skip, since they were cleaned."""

    @property
    def small(self) -> dict[str, Kept]:
        """All values that durable COMMITs have set."""
        return self._small[-1][1]

    @property
    def of_small_state(self) -> Sequence[tuple[int, Mapping[str, Kept]]]:
        """The small state as of each VLSN that set some of it, from the first on."""
        return self._small

    def passes(self, consumer: str, first: int, to: int) -> None:
        """Notes that a consumer continues at ``to``, since the entries before it were cleaned before they were read."""
        self._passed.setdefault(consumer, []).append(range(first, to))

    def passed(self, consumer: str) -> set[int]:
        return {vlsn for each in self._passed.get(consumer, ()) for vlsn in each}

    def placed(self, who: str, name: str, at: int, begins: int) -> None:
        """Checks a position in an answer: a durable COMMIT must have set it."""
        small = next((small for vlsn, small in self._small if vlsn == at), {})
        kept = small.get(name)
        if kept is None or kept.vlsn != at or msgspec.json.decode(kept.value)["next"] != begins:
            raise self._watch.violated(f"{who} was told that {name} is at {begins}, set at VLSN {at}; it is {kept}")

    def durable(self, data: bytes, header: BlockHeader) -> None:
        """Checks a block that became durable: its transactions are whole, and no other row has a transaction's id."""
        txn = due = 0
        for entry in entries(data, header, kinds=KINDS):
            if entry.txn == 0 and not txn:
                continue
            if not txn:
                txn = due = entry.vlsn
            if (entry.txn, entry.vlsn) != (txn, due):
                raise self._watch.violated(f"VLSN {entry.vlsn} of transaction {entry.txn} where {txn} goes on at {due}")
            due += 1
            if entry.kind == EntryKind.COMMIT:
                self._put(entry)
                self.ends[txn] = entry.vlsn
                self.inside.update(range(txn, entry.vlsn))
                txn = 0
        if txn:
            raise self._watch.violated(f"half of transaction {txn} is durable, to VLSN {header.last_vlsn}")

    def _put(self, commit: Entry) -> None:
        puts = CommitEntry.decode(commit.value).puts if commit.value else {}
        if puts:
            small = dict(self._small[-1][1])
            for name, value in puts.items():
                small.pop(name, None)
                if value is not None:
                    small[name] = Kept(commit.vlsn, value)
            self._small.append((commit.vlsn, small))

    def agree(self, node: SimNode, upto: int) -> None:
        """Checks the small state of a node, as of its durable end ``upto``: it is the sum of the COMMITs up to
        there."""
        log = node.log  # also while it is being closed, which syncs the rest
        assert log is not None
        small = log.view.history.small
        if small.lacks_to or small.settled > upto:
            return
        _, wanted = self._small[bisect_right(self._small, upto, key=lambda at: at[0]) - 1]
        found = small.as_of(upto)
        if found != wanted:
            said = f"{node.name} has as of VLSN {upto} the small state {found}; set was {wanted}"
            raise self._watch.violated(said)

    def shown(self, who: str, lines: int, headers: Mapping[str, str]) -> None:
        """Checks a reader's page: neither its end nor its durable end is inside a transaction."""
        durable, ends = int(headers["Vlsnlog-Durable"]), int(headers["Vlsnlog-Next"]) - 1
        if durable in self.inside:
            raise self._watch.violated(f"{who} was told of a durable end within a transaction: {durable}")
        if ends in self.inside and lines < PAGE_ENTRIES:
            raise self._watch.violated(f"{who} was shown a transaction up to VLSN {ends}, and not its end")

    def is_whole(self, who: str, first: int, values: Sequence[bytes]) -> None:
        """Checks an acknowledged transaction."""
        watch = self._watch
        for vlsn, value in enumerate(values, first):
            watch.shown(who, vlsn, value)
        end = self.ends.get(first)
        said = f"{who} was told that {values[0][:20]!r} … is committed from VLSN {first} to {first + len(values)}"
        watch.hold(end == first + len(values), f"{said}; its COMMIT is {end or 'nowhere'}")

    def check_end(self, name: str, span: VlsnRange) -> None:
        """Checks the node's last COMMIT of a transaction at the end, unless it was cleaned."""
        last = max(self.ends.values(), default=0)
        said = f"{name}: the last COMMIT is VLSN {last}, and its range says {span.last_txn_end}"
        self._watch.hold(span.last_txn_end == last or last < span.first, said)

    def check(self) -> None:
        """Checks all transactions at the end, once everything that may become durable is."""
        watch, places = self._watch, self._watch.ledger.places
        for sent in self.sent:
            at = [places.get(value, 0) for value in sent.values]
            said = f"a transaction of {sent.values[0][:20]!r} … is at VLSNs {at}"
            if not any(at):
                watch.hold(not sent.first, f"lost: {said}, and was acknowledged at {sent.first}")
                continue
            watch.hold(not sent.nowhere, f"lied: {said}, and nothing of it was to be logged: {sent.nowhere}")
            watch.hold(not sent.first or sent.first == at[0], f"lost: {said}, and was acknowledged at {sent.first}")
            watch.hold(at == list(range(at[0], at[0] + len(at))), said)
            watch.hold(self.ends.get(at[0]) == at[-1] + 1, f"{said}; its COMMIT is {self.ends.get(at[0], 'nowhere')}")


class TransactionClient:
    """Makes one transaction at a time.  Half of the clients name commits as a producer's submissions, the others by
    handles."""

    def __init__(self, clients: Clients, number: int, name: str = "t") -> None:
        self._clients, self._group, self._report = clients, clients.group, clients.report
        self._books = clients.group.watch.transactions
        self._name = f"{name}{number}"
        self._rng = Random(f"{self._name}/{clients.report.seed}")
        self._producer = 0x7000 + number if number % 2 else 0
        self._sequence = self._count = self._born = 0
        self._whole: deque[tuple[str, Sent]] = deque(maxlen=ENDED_MAX)
        self._gone: deque[tuple[str, Sent]] = deque(maxlen=ENDED_MAX)
        """Commits of known outcome by their handles, with the paths of their requests."""

    async def run(self) -> None:
        while not self._clients.over:
            await self._pause(0.5)
            for ended in self._whole, self._gone:
                if ended and self._rng.random() < LATER:
                    await self._ask_later(*self._rng.choice(ended))
            handle = await self._begin()
            if handle is None:
                continue
            sent = Sent([], nowhere="no commit was sent")
            self._books.sent.append(sent)
            staged = await self._stage(handle, sent)
            drawn = self._rng.random()
            if not sent.values or (staged and drawn < LEAVES):
                continue
            if not staged or drawn < LEAVES + ABORTS:
                await self._ask("DELETE", f"/{handle}")
                self._report.met["a transaction that its client aborted"] += 1
                continue
            await self._commit(handle, sent)

    async def _begin(self) -> str | None:
        status, answer = await self._ask("POST", "")
        return answer["transaction"] if status == 200 else None

    async def _stage(self, handle: str, sent: Sent) -> bool:
        """Stages the values of some calls; repeats a call without an answer. False if one is refused."""
        self._count += 1
        calls = self._rng.randint(1, CALLS_MAX)
        for call in range(calls):
            name = f"{self._name}.{self._count}.{call}"
            values = [
                f"{name}.{each}:".encode().ljust(self._rng.choice(SIZES), b"t")
                for each in range(self._rng.randint(1, VALUES_MAX))
            ]
            if not await self._stage_call(handle, sent, values):
                return False
            await asyncio.sleep(self._rng.choice(PAUSES_S))
        return True

    async def _stage_call(self, handle: str, sent: Sent, values: list[bytes]) -> bool:
        rows = [{"key": f"k{each}", "value": value.decode()} for each, value in enumerate(values)]
        body = b"\n".join(msgspec.json.encode(row) for row in rows)
        path = f"/{handle}/entries?after={len(sent.values)}"
        sent.values += values
        for _ in range(4):
            status, answer = await self._ask("POST", path, body, LINES)
            if status == 200 or answer["type"] == GONE:
                break
            await self._pause(AGAIN_S)
        said = f"{self._name} has staged {len(sent.values)}: {answer}"
        self._group.watch.hold(status != 200 or answer["staged"] == len(sent.values), said)
        return status == 200

    async def _commit(self, handle: str, sent: Sent, body: bytes = b"") -> None:
        """Commits until an answer is certain, or the run is over. ``body`` has positions to commit with it."""
        acks = self._rng.choice(("majority", "majority", "all"))
        path = f"/{handle}/commit?acks={acks}&timeout={TIMEOUT_S}"
        if self._producer:
            path += f"&producer={self._producer:016x}&sequence={self._sequence}&born={self._born}"
        sent.nowhere = ""
        asked = 0
        while asked < ASKS_MAX and not (self._clients.over and asked):
            listed = self._group.books.listed_so_far()
            status, answer = await self._ask("POST", path, body)
            asked += 1
            if status == 200:
                if acks == "all":
                    self._group.books.all_have(answer, listed)
                self._committed(sent, answer)
                self._report.met["a position committed with a transaction"] += bool(body)
                if not body:
                    self._keep(path, sent)
                return
            said = f"{self._name} hears {answer} of commit {asked} of {handle}"
            if answer["type"] in FORGOTTEN and self._producer and self._clients.few_producers:
                self._report.met["a producer that is forgotten"] += 1
                break
            self._group.watch.hold(answer["type"] not in NEVER, said)
            if answer["type"] in (GONE, STALE):
                sent.nowhere = said
                self._report.gone += answer["type"] == GONE
                self._report.met["a commit asked again, that is gone"] += asked > 1 and answer["type"] == GONE
                self._report.met["a position that another worker has committed"] += answer["type"] == STALE
                self._clients.refused.update(sent.values)
                if not body:
                    self._keep(path, sent)
                return
            await self._pause(AGAIN_S)
        self._report.unknown += 1
        if self._producer:  # another submission may have the sequence under that name
            self._producer, self._sequence, self._born = self._producer + 0x100, 0, self._clients.latest

    def _keep(self, path: str, sent: Sent) -> None:
        if not self._producer:
            (self._whole if sent.first else self._gone).append((path, sent))

    async def _ask_later(self, path: str, sent: Sent) -> None:
        """Repeats a commit of known outcome, at a deposed master if there is one: the answer must be that outcome, or
        not certain."""
        to = self._clients.leads_no_more(self._rng)
        status, answer, _ = await self._call("POST", f"/v1/transactions{path}", to=to)
        said = f"{self._name} hears {answer} of {path} after all"
        if status == 200:
            self._group.watch.hold(answer["first"] == sent.first, f"{said}, and it was: {sent.nowhere or sent.first}")
        elif answer["type"] == GONE:
            self._group.watch.hold(not sent.first, f"{said}, and it was at {sent.first}")
        self._report.met["a commit asked for later, answered as before"] += status == 200 or answer["type"] == GONE

    def _committed(self, sent: Sent, answer: dict[str, Any]) -> None:
        watch, values = self._group.watch, sent.values
        watch.hold(answer["durable"], f"{self._name} was told of what is not durable: {answer}")
        watch.hold(answer["last"] - answer["first"] == len(values), f"{self._name}: {len(values)} values are {answer}")
        self._books.is_whole(self._name, answer["first"], values)
        sent.first = answer["first"]
        self._sequence += 1
        self._report.committed += 1
        self._report.met["a commit asked again, answered as the first one was"] += bool(answer.get("duplicate"))
        for vlsn, value in enumerate(values, answer["first"]):
            self._clients.acknowledge(vlsn, value)

    async def _ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] = JSON
    ) -> tuple[int, dict[str, Any]]:
        status, answer, _ = await self._call(method, f"/v1/transactions{path}", body, headers)
        return status, answer

    async def _call(
        self, method: str, target: str, body: bytes = b"", headers: dict[str, str] = JSON, to: str = ""
    ) -> tuple[int, dict[str, Any], Mapping[str, str]]:
        """Asks mostly the reported master, and follows redirects. A missing answer is ``outcome-unknown``; lines are
        ``rows``."""
        self._report.operations += 1
        url = self._group.url(to or self._clients.target(self._rng))
        for _ in range(2):
            try:
                response = await self._group.client.request(
                    method, url + target, headers=headers, body=body, timeout_s=TIMEOUT_S + 0.5
                )
            except (VlsnLogError, OSError):
                return 0, {"type": "outcome-unknown"}, {}
            if response.status != 307:
                break
            url = response.headers["Location"].removesuffix(target)
        else:
            return 307, {"type": "redirected"}, {}
        if response.status == 200 and method == "GET" and target.startswith("/v1/entries"):
            rows = [msgspec.json.decode(line) for line in bytes(response.body).splitlines()]
            return 200, {"rows": rows}, response.headers
        answer = msgspec.json.decode(bytes(response.body)) if response.body else {"type": ""}
        return response.status, answer, response.headers

    async def _pause(self, most_s: float) -> None:
        await asyncio.sleep(self._rng.uniform(0.0, most_s))
