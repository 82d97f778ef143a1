"""Sources by their text: a node's URL, a directory, or a directory behind any URL of fsspec."""

from __future__ import annotations

from repl.audit.source import Source
from repl.audit.source import source_of as local_or_live


def source_of(text: str) -> Source:
    """Returns the source that ``text`` names. Raises ``BadArgument``, and ``Unreadable`` for a scheme that nothing
    installed here reads."""
    if "://" in text and not text.startswith(("http://", "https://")):
        from repl.spark.remote import RemoteDirectory

        return RemoteDirectory.of(text)
    return local_or_live(text)
