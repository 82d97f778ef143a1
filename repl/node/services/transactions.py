"""Transactions: staged and committed by the lead, while this node is the master."""

from __future__ import annotations

from repl.api import Acks, CommitSets, Done, Handle
from repl.lead.append_book import Append
from repl.names.positions import confirm_end
from repl.node.services.commits import puts_of
from repl.node.services.mastership import NodeMastership
from vlsn.durability import GroupDurability
from vlsn.format.batch import Batch
from vlsn.format.submission import Values


class NodeTransactions(NodeMastership):
    """``repl.lead.transactions_http.Transactions``."""

    def begin(self, id: int | None) -> tuple[Handle, int]:
        transactions = self._lead().transactions
        return transactions.begin(id), transactions.bytes_max

    async def stage(self, handle: Handle, part: Values | Batch, after: int | None, rewinds: int) -> int:
        return await self._lead().transactions.stage(handle, part, after, rewinds)

    async def commit(
        self,
        handle: Handle,
        acks: Acks,
        done: Done,
        *,
        name: tuple[int, int] | None,
        born: int | None,
        sets: CommitSets | None,
        durability: GroupDurability | None,
        after: int | None,
        rewinds: int,
    ) -> Append:
        lead = self._lead()
        if durability is not None:
            lead.admission.check_durability(durability)
        if sets is not None:
            await confirm_end(lead, sets.positions)
        puts = puts_of(lead, sets)
        return lead.transactions.commit(
            handle,
            acks,
            done,
            name=name,
            born=born,
            puts=puts,
            durability=durability,
            after=after,
            rewinds=rewinds,
        )

    async def abort(self, handle: Handle) -> None:
        await self._lead().transactions.abort(handle)
