"""Forged votes, hellos, requests to stand and feeds, in the names of members and of unknown nodes."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import cycle
from typing import Any

import msgspec

from harness.hostile.kind import Kind, Scene
from repl.api import FeedHello
from repl.group.feed_hello import encode_hello
from repl.net.network import AiohttpNetwork
from vlsn.errors import VlsnLogError
from vlsn.format.feed_messages import STORED_TERM_MAX
from vlsn.ids import Incarnation, NodeName, Term

PAUSE_S = 0.01
TIMEOUT_S = 5.0
LAST_TERM = 1 << 62
MADE_UP = 0xDEADBEEF


async def _attack(scene: Scene) -> str:
    """Copies a node's reports of the group, and sends forgeries to each of the others."""
    network = AiohttpNetwork()
    answers = Counter[str]()
    loop = asyncio.get_running_loop()
    try:
        group = await _asked(network, "GET", f"{scene.master_url}/v1/group")
        before = {name: await _status(network, scene, name) for name in (scene.master, *scene.replicas)}
        until = loop.time() + scene.seconds
        forgeries = cycle(_forgeries(scene, group))
        while loop.time() < until:
            to, path, body = next(forgeries)
            answers[f"{path} {await _sent(network, scene, to, path, body)}"] += 1
            await asyncio.sleep(PAUSE_S)
        for name, status in before.items():
            now = await _status(network, scene, name)
            if now["term"] != status["term"]:
                scene.found.append(f"{name} has stored term {now['term']}; it was {status['term']}")
    finally:
        await network.close()
    return ", ".join(f"{what}: {count}" for what, count in sorted(answers.items()))


def _forgeries(scene: Scene, group: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Lists target, path and body of each forgery: each member's name with its own incarnation and a made-up one."""
    found: list[tuple[str, str, dict[str, Any]]] = []
    term = int(group["term"])
    senders = [(member["name"], int(member["incarnation"], 16)) for member in group["members"]]
    senders += [(name, MADE_UP) for name, _ in senders] + [("nobody", MADE_UP)]
    for to in (scene.master, *scene.replicas):
        for sender, incarnation in senders:
            if sender == to:
                continue
            named = {"group": group["group"], "sender": sender, "to": to, "incarnation": f"{incarnation:016x}"}
            for far in (STORED_TERM_MAX, term + 17, term + 1):
                vote = {"term": far, "pre": False, "last_term": LAST_TERM, "last_vlsn": 1, "sequence": LAST_TERM}
                found.append((to, "vote", {**named, **vote, "transfer": True, "highest_of_all": True}))
            hello = {"process": f"{MADE_UP:016x}", "purpose": "discovery", "term": STORED_TERM_MAX}
            found.append((to, "hello", {**named, **hello, "sequence": LAST_TERM, "told": LAST_TERM}))
            found.append((to, "stand", {"group": group["group"], "sender": sender, "to": to, "term": term}))
            found.append((to, "feed", {**named, "term": STORED_TERM_MAX}))
            found.append((to, "feed", {**named, "term": term}))
    return found


async def _sent(network: AiohttpNetwork, scene: Scene, to: str, path: str, body: dict[str, Any]) -> str:
    """Sends a forgery and returns the answer in one word."""
    try:
        if path == "feed":
            return await _feed(network, scene, to, body)
        answer = await _asked(network, "POST", f"{scene.url(to)}/v1/peer/{path}", body)
    except VlsnLogError as error:
        return error.slug
    if answer.get("granted"):
        scene.found.append(f"{to} has given its vote of term {body['term']} to a stranger")
    return str(answer.get("type") or answer.get("reason") or "answered")


async def _feed(network: AiohttpNetwork, scene: Scene, to: str, body: dict[str, Any]) -> str:
    hello = FeedHello(
        group=body["group"],
        node=NodeName(body["sender"]),
        incarnation=Incarnation(int(body["incarnation"], 16)),
        to=NodeName(to),
        to_incarnation=None,
        term=Term(body["term"]),
        process=MADE_UP,
    )
    channel = await network.connect(
        f"{scene.url(to)}/v1/feed", headers=encode_hello(hello), message_bytes_max=1 << 20, timeout_s=TIMEOUT_S
    )
    await channel.close()
    return "taken"


async def _status(network: AiohttpNetwork, scene: Scene, name: str) -> dict[str, Any]:
    return await _asked(network, "GET", f"{scene.url(name)}/v1/status")


async def _asked(network: AiohttpNetwork, method: str, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    headers = {} if body is None else {"Content-Type": "application/json"}
    sent = b"" if body is None else msgspec.json.encode(body)
    response = await network.request(method, url, headers=headers, body=sent, timeout_s=TIMEOUT_S)
    answer: dict[str, Any] = msgspec.json.decode(bytes(response.body))
    return answer


KIND = Kind("forgeries", "votes, hellos, requests to stand and feeds in the name of members and of nobody", _attack)
