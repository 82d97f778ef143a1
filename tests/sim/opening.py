"""The rules for a log that was just opened, compared with the bytes of its disk.

* VLSNs contiguous, one content for each (term, first VLSN)
* synced bytes are not cut
* nothing durable is gone after a restart, nor after a restore, as far as its process knew it to be durable
* index and term runs agree with the log
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from tests.sim.copies import Copy
from tests.sim.logs import Block, said_synced, visible
from vlsn.ids import Vlsn

if TYPE_CHECKING:
    from tests.sim.group import SimNode
    from tests.sim.watch import Watch

SAMPLE = 7
"""The step by which blocks of an opened log are looked up in its index."""


class Opening:
    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def opened(self, node: SimNode) -> None:
        name, log, watch = node.name, node.opened().log, self._watch
        before, ledger = watch.copies[name], watch.ledger
        found = visible(watch.group.machines[name].disk, f"/{name}", watch.flips)
        found = self._not_cut(name, found, log.view.range.last)
        blocks = [block for block, _ in found if block.first >= log.view.range.first]
        copy = watch.copies[name] = Copy(blocks, synced=blocks[-1].last if blocks else 0, process=node.member.process)
        copy.dtvlsn = before.dtvlsn if before.process == node.member.process and not before.replaced else 0
        for one, other in pairwise(blocks):
            if other.first != one.last + 1:
                raise watch.violated(f"{name}: {other} follows on {one} after an open")
        self._index(node, found)
        copy.groups = [(vlsn, group) for vlsn, group in ledger.groups if vlsn < log.view.range.first]
        for block in blocks:
            copy.groups += ledger.groups_in.get((block.term, block.first), [])
        watch.writing.has_synced(node)
        for block in blocks[copy.at(ledger.last + 1) :]:
            ledger.one_content_as_noted(name, block)
        if not before.replaced:
            self._kept(name, before, copy, log.view.range.first)
        elif before.process == node.member.process:
            said = f"{name} is restored up to {copy.last}, and had called {before.checked} durable in this very process"
            watch.hold(copy.last >= before.checked, said)
        watch.writing.durable_rose(node)

    def _not_cut(self, name: str, found: list[tuple[Block, int]], last: int) -> list[tuple[Block, int]]:
        """Lists blocks at the end of a log that rot has made unreadable. They may be cut, with a vote floor, but only
        if nothing states that they were synced."""
        watch = self._watch
        missing = [lsn for block, lsn in found if block.last > last]
        if name not in watch.rotten or not missing:
            return found
        damaged = said_synced(watch.group.machines[name].disk, f"/{name}", missing[0], watch.flips)
        watch.hold(not damaged, f"{name}: its log is cut at {missing[0]:#x}, where it had been synced and is damaged")
        watch.copies[name].replaced = True
        return found[: -len(missing)]

    def _index(self, node: SimNode, found: list[tuple[Block, int]]) -> None:
        log, name, watch = node.opened().log, node.name, self._watch
        places = {block.first: lsn for block, lsn in found}
        lasts = {block.last: lsn for block, lsn in found}
        last = found[-1][0].last if found else 0
        watch.hold(log.view.range.last == last, f"{name}: the index ends at {log.view.range.last}, the log at {last}")
        runs = log.view.history.term_runs
        ends = runs[-1].last if runs else 0
        watch.hold(ends == last, f"{name}: its term runs end at {ends}, the log at {last}")
        first = log.view.range.first
        for block, lsn in [*found[:1], *found[::SAMPLE], *found[-2:]]:
            if block.first < first:
                continue
            if log.view.history.term_of(Vlsn(block.last)) != block.term:
                raise watch.violated(f"{name}: {block}, and the term runs {runs}")
            mapping = log.view.index.at_or_before(Vlsn(block.first))
            at, there = mapping or (block.last + 1, 0)
            if at > block.first or there not in (places.get(at), lasts.get(at)):
                raise watch.violated(f"{name}: the index has {mapping} for {block} at {lsn:#x}")

    def _kept(self, name: str, before: Copy, now: Copy, first: int) -> None:
        """Checks that durable blocks that were synced here before the restart are still here."""
        held = set(now.blocks)
        kept_to = before.synced if before.given_up_after is None else min(before.synced, before.given_up_after)
        for block in before.blocks[before.at(max(first, 1)) : before.at(kept_to + 1)]:
            if block.first >= first and self._watch.ledger.durable.get(block.first) == block and block not in held:
                raise self._watch.violated(f"{name}: {block}, durable and synced here, is gone after an open")
