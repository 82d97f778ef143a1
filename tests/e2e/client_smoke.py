"""A client's calls against a node, on both event loops: ``python client_smoke.py URL CA TOKEN NAME``.

It runs where nothing but a client's packages is installed, with any aiohttp that a client works with. ``URL`` begins
with ``https://``; ``CA`` is the file of the node's authority. ``NAME`` is new for each run. Prints aiohttp's version.
"""

from __future__ import annotations

import asyncio
import sys
import warnings

import aiohttp
import uvloop

from repl import NotFound, TlsFiles, Unauthorized, Unreachable, connect
from repl.client.connect import real_network

ENTRIES = 300
LARGE = bytes(700_000)
STEP_S = 60.0


async def calls(url: str, ca: str, token: str, name: str) -> None:
    tls, key = TlsFiles(ca=ca), name.encode()
    async with connect(url, tls=tls, token=token, exactly_once=True, timeout_s=STEP_S) as log:
        vlsns = await asyncio.gather(*(log.append(b"%d" % n, key=key) for n in range(ENTRIES)))
        assert len(set(vlsns)) == ENTRIES
        large = await log.append_many([LARGE, LARGE], keys=[key] * 2)
        found = [entry.value async for entry in log.read(key=key)]
        assert sorted(found[:ENTRIES]) == sorted(b"%d" % n for n in range(ENTRIES))
        assert found[ENTRIES:] == [LARGE, LARGE]
        tail = log.tail(from_vlsn=max(vlsns) + 1, key=key)
        assert [(await anext(tail)).value for _ in range(2)] == [LARGE, LARGE]
        waiting = asyncio.create_task(anext(tail))
        await asyncio.sleep(0.1)
        async with log.transaction() as txn:
            await txn.append(b"debit", key=key)
            await txn.append(b"credit", key=key)
        assert (await waiting).value == b"debit"
        await tail.aclose()
        consumer = log.consumer(f"{name}-reader", from_vlsn=min(vlsns))
        async for _ in consumer:
            await consumer.commit()
            break
        await log.destinations.put(name, prefix=name, **{"from": "start"})
        acknowledged = 0
        async for message in log.destination(name):
            await message.ack()
            acknowledged += 1
            if acknowledged == ENTRIES:
                break
        assert large
    await refusals(url, tls, token)


async def refusals(url: str, tls: TlsFiles, token: str) -> None:
    """Each refusal raises the error of its problem document, be it a call or an upgrade."""
    other = token[:-5] + ("A" if token[-5] != "A" else "B") + token[-4:]
    async with connect(url, tls=tls, token=other, timeout_s=5) as stranger:
        try:
            await stranger.append(b"never")
        except Unauthorized:
            pass
        else:
            raise AssertionError("a bad token was taken")
    network = real_network(tls)
    try:
        for path, error in (("/v1/nothing", NotFound), ("/v1/produce", Unauthorized)):
            try:
                await network.connect(
                    url + path, headers={"Authorization": "Bearer x"}, message_bytes_max=1 << 20, timeout_s=STEP_S
                )
            except error:
                continue
            raise AssertionError(f"{path} was upgraded")
    finally:
        await network.close()
    untrusting = real_network(TlsFiles())
    try:
        await untrusting.request("GET", f"{url}/v1/status", timeout_s=STEP_S)
    except Unreachable as error:
        lasts = error.tls
    else:
        raise AssertionError("a certificate of no authority was trusted")
    finally:
        await untrusting.close()
    assert lasts


def main() -> None:
    warnings.simplefilter("error")
    url, ca, token, name = sys.argv[1:]
    asyncio.run(calls(url, ca, token, f"{name}-asyncio"))
    uvloop.run(calls(url, ca, token, f"{name}-uvloop"))
    print(aiohttp.__version__)


if __name__ == "__main__":
    main()
