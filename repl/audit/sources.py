"""Makes a source of an audit from its text: a directory or a node's URL."""

from __future__ import annotations

import os

from repl.audit.directory import DirectorySource
from repl.audit.live import LiveSource
from repl.audit.source import Source
from vlsn.errors import BadArgument


def source_of(text: str) -> Source:
    """Returns the source that ``text`` names. Raises ``BadArgument``."""
    if text.startswith(("http://", "https://")):
        return LiveSource(text.rstrip("/"))
    if "://" in text:
        raise BadArgument(f"{text}: a source is a node's directory or its http:// URL")
    return DirectorySource(os.path.abspath(text), text)
