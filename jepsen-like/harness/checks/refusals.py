"""Checks that nobody was refused for a key, a certificate or a host, as a rotation in a wrong order would cause.

unauthorized: …                                     a signature, by its error's type
…TLS: unable to get local issuer certificate        a handshake; one that a fault cut short is none of these
n1 does not accept the key r3: …                    a member's words in its log
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from harness.checks.view import Anomaly, View

_REFUSAL: Final = re.compile(
    r"""
    \b(?:unauthorized|forbidden|misdirected|stale-session)\b
    | does\ not\ accept\ the\ key | is\ signed\ with\ another\ key | \ is\ not\ signed\b | names\ another\ session
    | certificate | unknown[_ ]ca\b | local\ issuer | self-signed | hostname\ mismatch
    | \b(?:tls\.reload-failed|key\.unread)\b
    """,
    re.VERBOSE | re.IGNORECASE,
)


def is_refusal(words: str) -> bool:
    """Says whether an error or a line of a log is about a key, a certificate or a host."""
    return _REFUSAL.search(words) is not None


def nobody_is_refused(view: View) -> Iterator[Anomaly]:
    for op in view.errors:
        if is_refusal(op.error):
            numbers = op.value.get("numbers") or [0]
            yield Anomaly("refused", op.process, f"{op.f}: {op.error}", 0, numbers[0], op.seconds)


CHECKS = (nobody_is_refused,)
