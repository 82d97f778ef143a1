"""The addresses of nodes: which of them are this machine's alone, and whether a command is for this node.

A command knows a node by its URL, and signs the host and port. So nobody can pass it on to another member:

    the node's own URL, its listen address, one of its ``hosts``     it is for this node
    another member's URL                                             it is not
    any other address, and the node listens on loopback              by the port
    any other address                                                it may be: a proxy, or a forwarded port
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from repl.config import NodeConfig
from repl.credentials.loopback import is_loopback
from vlsn.ids import NodeName


def all_on_loopback(config: NodeConfig) -> bool:
    """Says whether the node's address and all members' URLs are this machine's loopback."""
    return all(map(is_loopback, [config.host, *(urlsplit(url).hostname or "" for url in config.members.values())]))


def place_of(url: str) -> str:
    """Returns HOST:PORT of a URL, as a command signs it."""
    return urlsplit(url).netloc


def is_here(config: NodeConfig, urls: Mapping[NodeName, str], place: str) -> bool:
    """Says whether a command to ``place`` may be for the node of ``config``; ``urls`` are the members' URLs."""
    if place in (place_of(config.url), config.listen, *config.hosts):
        return True
    if any(place == place_of(url) for name, url in urls.items() if name != config.name):
        return False
    if not is_loopback(config.host):
        return True
    host, _, port = place.rpartition(":")
    return is_loopback(host.strip("[]")) and port == str(config.port)
