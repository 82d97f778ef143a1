"""Hosts that are this machine's own loopback."""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Says whether ``host`` is this machine's loopback, by its name or as 127.0.0.0/8 or ::1."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
