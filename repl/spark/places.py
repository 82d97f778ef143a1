"""Sources by their text: a node's URL, a directory, or any URL of fsspec to a directory."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TypeVar

from repl.audit.live import LiveSource
from repl.audit.source import Source
from repl.audit.sources import source_of as local_or_live
from repl.spark.options import AS_USUAL, Asked, ReadOptions

Options = TypeVar("Options", bound=ReadOptions)


def is_url(text: str) -> bool:
    """Says whether ``text`` names a running node."""
    return text.startswith(("http://", "https://"))


def placed(options: Options) -> Options:
    """Returns the options with absolute paths, since a task has another working directory."""
    return replace(options, sources=tuple(text if "://" in text else os.path.abspath(text) for text in options.sources))


def source_of(text: str, asked: Asked = AS_USUAL) -> Source:
    """Returns the source that ``text`` names, read as ``asked`` says. Raises ``BadArgument``, and ``Unreadable`` for a
    URL scheme that no installed package reads."""
    if "://" in text and not is_url(text):
        from repl.spark.remote import RemoteDirectory

        return RemoteDirectory.of(text)
    source = local_or_live(text)
    if isinstance(source, LiveSource):
        return replace(source, founding=asked.group, give_up_s=asked.give_up_s, token_file=asked.token_file)
    return source
