"""Spans of a log on real nodes: they are consecutive, have the entries that they name, and detect another history."""

from __future__ import annotations

from random import Random

import pytest

from repl.client.connect import Client
from tests.fakes.seeds import seeds
from tests.seam.nodes import Group
from tests.seam.test_consumers import client
from tests.seam.test_transactions import known, next_master, played
from vlsn.errors import BadArgument, NotInLog
from vlsn.limits import KIB


async def filled(log: Client, rng: Random) -> int:
    """Appends entries of any size, some of them many at once."""
    last = 0
    for _ in range(40):
        values = [bytes(rng.choice((10, 300, 9000))) for _ in range(rng.choice((1, 1, 30)))]
        _, last = await log.append_many(values)
    return last


@pytest.mark.parametrize("seed", seeds(3))
def test_spans_cover_what_was_asked_for_and_are_about_as_large_as_asked(seed: int) -> None:
    async def story(group: Group) -> None:
        rng = Random(f"spans/{seed}")
        async with client(group) as log:
            last = await filled(log, rng)
            whole = await log.spans()
            assert [(whole.first, each.next, each.term) for each in whole.spans] == [(1, last + 1, 1)]
            size = whole.spans[0].bytes
            for bytes_each in (1, 4 * KIB, 100 * KIB, 1 << 40):
                at, upto = rng.randint(1, last), rng.randint(1, last)
                found = await log.spans(at, upto, bytes_each=bytes_each, limit=256)
                nexts = [each.next for each in found.spans]
                assert nexts == sorted(set(nexts))
                assert nexts[-1:] == ([upto + 1] if at <= upto else [])
                assert all(each.bytes <= max(bytes_each, 400 * KIB) for each in found.spans[:-1])
                assert sum(each.bytes for each in found.spans) <= size
            each = await log.spans(3, bytes_each=20 * KIB, limit=256)
            assert len(each.spans) > 3, "the log is cut"
            few = await log.spans(1, entries_each=7, limit=5)
            assert [span.next for span in few.spans] == [8, 15, 22, 29, 36]
            assert (await log.spans(last + 1)).spans == ()

    played(story, seed=seed, segment_bytes=256 * KIB)


def test_spans_say_the_terms_by_which_a_reader_goes_on() -> None:
    async def story(group: Group) -> None:
        async with client(group) as log:
            first = await log.append(b"of term 1")
            await known(group, first)
            await next_master(group)
            await log.append(b"of a later term")
            found = await log.spans(1, entries_each=1, limit=256)
            terms = [span.term for span in found.spans]
            assert terms[first - 1] == 1
            assert terms == sorted(terms)
            assert terms[-1] > 1
            assert (await log.spans(first + 1, after_term=1)).spans
            with pytest.raises(NotInLog):
                await log.spans(first + 1, after_term=2)
            pages = [page async for page in log.block_pages(first + 1, after_term=1)]
            assert pages[-1].next_vlsn == found.durable + 1
            with pytest.raises(NotInLog):
                await anext(log.block_pages(first + 1, after_term=2))
            with pytest.raises(BadArgument):
                await log.spans(0)

    played(story)
