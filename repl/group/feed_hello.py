"""The HTTP headers of a replica's request for its feed."""

from __future__ import annotations

import re
from collections.abc import Mapping

from repl.api import FeedHello
from vlsn.errors import BadArgument
from vlsn.format.feed_messages import STORED_TERM_MAX
from vlsn.ids import Incarnation, NodeName, Term, is_name
from vlsn.levels import Levels, read_levels

_HEX = re.compile(r"[0-9a-f]{16}\Z")
_WHOLE = re.compile(r"[0-9]{1,19}\Z")


def encode_hello(hello: FeedHello) -> dict[str, str]:
    """Returns the headers with which a replica connects."""
    headers = {
        "Vlsnlog-Version": str(hello.levels),
        "Vlsnlog-Group": hello.group,
        "Vlsnlog-Node": hello.node,
        "Vlsnlog-Incarnation": f"{hello.incarnation:016x}",
        "Vlsnlog-To": hello.to,
        "Vlsnlog-Term": str(hello.term),
        "Vlsnlog-Process": f"{hello.process:016x}",
    }
    if hello.to_incarnation is not None:
        headers["Vlsnlog-To-Incarnation"] = f"{hello.to_incarnation:016x}"
    return headers


def decode_hello(headers: Mapping[str, str], *, to: str, levels: Levels) -> FeedHello:
    """Decodes a request for a feed to the node ``to``, which supports ``levels``. Levels are checked first, because a
    later release may use other headers. Raises ``WrongVersion``, or ``BadArgument`` with the name of the header."""
    theirs = read_levels(headers.get("Vlsnlog-Version", ""))
    levels.check_peer(theirs, own=to, peer="the replica")
    to_incarnation = _hex(headers, "Vlsnlog-To-Incarnation") if "Vlsnlog-To-Incarnation" in headers else None
    term = headers.get("Vlsnlog-Term", "")
    if not _WHOLE.match(term) or int(term) > STORED_TERM_MAX:
        raise BadArgument(f"header Vlsnlog-Term {term[:40]!r} is not a whole number in 0–{STORED_TERM_MAX}")
    return FeedHello(
        group=_name(headers, "Vlsnlog-Group"),
        node=NodeName(_name(headers, "Vlsnlog-Node")),
        incarnation=Incarnation(_hex(headers, "Vlsnlog-Incarnation")),
        to=NodeName(_name(headers, "Vlsnlog-To")),
        to_incarnation=None if to_incarnation is None else Incarnation(to_incarnation),
        term=Term(int(term)),
        process=_hex(headers, "Vlsnlog-Process"),
        levels=theirs,
    )


def _name(headers: Mapping[str, str], header: str) -> str:
    text = headers.get(header, "")
    if not is_name(text):
        raise BadArgument(f"header {header} {text[:40]!r} is not a name (1–32 of A-Z a-z 0-9 . _ -)")
    return text


def _hex(headers: Mapping[str, str], header: str) -> int:
    text = headers.get(header, "")
    if not _HEX.match(text):
        raise BadArgument(f"header {header} {text[:40]!r} is not 16 lower-case hex digits")
    return int(text, 16)
