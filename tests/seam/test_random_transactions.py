"""Transactions on real nodes in one process, with calls and failures at random, against a plain model."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from repl.web.limits import STAGED_S
from tests.fakes.seeds import seeds
from tests.seam.nodes import Group
from tests.seam.test_transactions import ask, commit, committed, next_master, place, played, stage


@pytest.mark.parametrize("seed", seeds(8))
def test_every_transaction_is_there_whole_and_once_or_gone_whatever_is_called_and_fails(seed: int) -> None:
    """The answer to each call decides which entries may be read in the end."""

    async def story(group: Group) -> None:
        rng = Random(seed)
        values: dict[str, list[bytes]] = {}
        told: dict[str, tuple[int, int, int]] = {}
        gone: set[str] = set()
        names: dict[str, str] = {}

        async def act(number: int) -> None:
            handle = rng.choice([*values, ""])
            call = rng.randrange(10)
            if not handle or call < 2:
                status, said = await ask(group, "POST", "")
                if status == 200:
                    values[said["transaction"]] = []
            elif call < 6:
                status, said = await stage(group, handle, b"%d" % number)
                if status == 200:
                    values[handle].append(b"%d" % number)
                elif said["type"] == "transaction-gone" and not names.get(handle):
                    assert handle not in told
                    gone.add(handle)
            elif call < 9:
                if handle not in names:
                    named = rng.random() < 0.3
                    names[handle] = f"?producer={rng.getrandbits(62) + 1:016x}&sequence=0&born=1" if named else ""
                status, said = await commit(group, handle, names[handle])
                if status == 200:
                    assert handle not in gone
                    assert told.setdefault(handle, place(said)) == place(said)
                elif said["type"] == "transaction-gone":
                    assert handle not in told
                    gone.add(handle)
            else:
                status, said = await ask(group, "DELETE", f"/{handle}")
                if status == 204 and not names.get(handle):
                    assert handle not in told
                    gone.add(handle)

        for number in range(150):
            fault = rng.random()
            if fault < 0.03 and len(group.nodes) == 3:
                await next_master(group)
            elif fault < 0.05:
                await asyncio.sleep(STAGED_S)
            elif fault < 0.1:
                for name in group.names:
                    if name not in group.nodes:
                        await group.start(name)
            try:
                await act(number)
            except (ConnectionError, TimeoutError):
                pass
        for handle, name in names.items():
            status, said = await committed(group, handle, name)
            if status == 200:
                assert handle not in gone and told.setdefault(handle, place(said)) == place(said)
            else:
                assert said["type"] == "transaction-gone" and handle not in told, said
        read = await group.read(group.master)
        assert sorted(read.values()) == sorted(value for handle in told for value in values[handle])
        for handle, (first, last, _) in told.items():
            assert [read[vlsn] for vlsn in range(first, last)] == values[handle]

    played(story, seed=seed)
