"""A page in a browser: sends appends, admin calls and votes with another host name, from another origin, as plain
text."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import cycle

from harness.hostile.kind import Kind, Scene
from repl.net.network import AiohttpNetwork

PAUSE_S = 0.005
TIMEOUT_S = 5.0
PLAIN = {"Content-Type": "text/plain"}
OCTETS = {"Content-Type": "application/octet-stream"}
FOREIGN: tuple[tuple[dict[str, str], int], ...] = (
    ({"Host": "evil.example"}, 421),
    ({"Origin": "http://evil.example"}, 403),
    ({"Origin": "null"}, 403),
    ({"Sec-Fetch-Site": "cross-site"}, 403),
)
"""Headers, and the answer that refuses them."""
CALLS: tuple[tuple[str, str, dict[str, str], bytes], ...] = (
    ("POST", "/v1/entries", OCTETS, b"from a page"),
    ("POST", "/v1/admin/transfer", PLAIN, b""),
    ("POST", "/v1/admin/restore", PLAIN, b""),
    ("POST", "/v1/admin/rotate", PLAIN, b""),
    ("POST", "/v1/peer/vote", PLAIN, b"{}"),
    ("GET", "/v1/status", {}, b""),
)


async def _attack(scene: Scene) -> str:
    network = AiohttpNetwork()
    answers = Counter[int]()
    until = asyncio.get_running_loop().time() + scene.seconds
    names = (scene.master, *scene.replicas)
    sent = cycle([(name, call, foreign) for name in names for call in CALLS for foreign in (*FOREIGN, ({}, 415))])
    try:
        while asyncio.get_running_loop().time() < until:
            name, (method, path, headers, body), (foreign, status) = next(sent)
            if not foreign and headers is not PLAIN:
                continue  # the header is the usual one
            url = f"{scene.url(name)}{path}"
            response = await network.request(
                method, url, headers={**headers, **foreign}, body=body, timeout_s=TIMEOUT_S
            )
            answers[response.status] += 1
            if response.status != status:
                scene.found.append(f"{method} {path} with {foreign or headers} at {name}: {response.status}")
            await asyncio.sleep(PAUSE_S)
    finally:
        await network.close()
    return ", ".join(f"{status}: {count}" for status, count in sorted(answers.items()))


KIND = Kind("pages", "a page in a browser, by another name, from another origin, as plain text", _attack)
