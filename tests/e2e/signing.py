"""Signatures of calls that a test makes in a member's name, with the key of its group."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

from repl.auth.keyring import Keyring
from repl.auth.peer_door import PeerDoor
from repl.auth.signatures import HEADER, NO_SESSION, Signer, digest, feed_values, sign_call
from repl.auth.trust import Trust
from repl.cluster import KEY_FILE
from repl.config import load_node_config
from tests.e2e.calls import UPGRADE, call
from tests.e2e.group import Group
from vlsn.real.clock import SystemRandom
from vlsn.real.disk import PosixDisk


def keyring(group: Group) -> Keyring:
    def event(name: str, **fields: object) -> None:
        pass

    made = Keyring(PosixDisk(), str(group.directory / KEY_FILE), event)
    made.load()
    return made


def signed(
    group: Group, to: str, sender: str, method: str, target: str, *, body: bytes = b"", feed: Mapping[str, str] | None
) -> str:
    """Returns the signature of one call to ``to`` by a process of its own; ``feed``: the headers of a feed."""
    keys = keyring(group).keys
    assert keys is not None
    name = load_node_config(path=group.config(to), environment={}).group
    process, url = secrets.token_hex(8), group.urls[to] + target

    def header(session: str) -> str:
        by = Signer(sender=sender, to=to, process=process, session=session, n=1)
        values = feed_values(feed) if feed is not None else ()
        sent = sign_call(keys.signing, by, group=name, method=method, target=target, body=digest(body), feed=values)
        return sent.header()

    more = {**feed, **UPGRADE} if feed is not None else {"Content-Type": "application/json"}
    answer = call(method, url, headers={**more, HEADER: header(NO_SESSION)}, body=body)
    document = answer.refused(401, "stale-session")
    return header(document["session"])


def peer_door(group: Group, name: str) -> PeerDoor:
    """Returns the door of a stand-in for ``name``."""

    async def offload(job: Callable[[], bytes]) -> bytes:
        return job()

    trust = Trust(
        name=name,
        group=load_node_config(path=group.config(name), environment={}).group,
        process="0" * 16,
        keyring=keyring(group),
        is_signed_only=lambda: True,
        met=lambda sender, is_signed: None,
        is_here=lambda place: False,
        offload=offload,
    )
    return PeerDoor(trust, SystemRandom())
