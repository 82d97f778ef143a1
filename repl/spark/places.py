"""Finds sources by their text: a node's URL, a directory, or any URL of fsspec to a directory."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TypeVar

from repl.audit.live import LiveSource
from repl.audit.source import Source
from repl.audit.sources import source_of as local_or_live
from repl.spark.options import AS_USUAL, Asked, ReadOptions
from repl.tls_files import NO_FILES, TlsFiles, check_files, or_environment
from vlsn.errors import BadArgument
from vlsn.real.disk import PosixDisk

Options = TypeVar("Options", bound=ReadOptions)


def is_url(text: str) -> bool:
    """Returns whether ``text`` is the URL of a running node."""
    return text.startswith(("http://", "https://"))


def with_files(options: Options) -> Options:
    """Returns the options with the files of TLS ``checked``. Raises ``BadArgument``."""
    return replace(options, asked=replace(options.asked, tls=checked(options.asked.tls)))


def placed(options: Options) -> Options:
    """Returns the options with absolute paths, because a task of Spark has another working directory."""
    return replace(options, sources=tuple(text if "://" in text else os.path.abspath(text) for text in options.sources))


def checked(files: TlsFiles) -> TlsFiles:
    """Returns the files of TLS with absolute paths, since a task has another working directory. The files are read here
    once, so that the driver refuses what no call could use. Raises ``BadArgument``."""
    if files == NO_FILES:
        return files
    found = TlsFiles(*(path and os.path.abspath(path) for path in (files.ca, files.cert, files.key)))
    try:
        check_files(or_environment(found), PosixDisk())
    except BadArgument as error:
        settings, _, why = str(error).partition(": ")
        names = {"tls_ca": "tlsCa", "tls_cert": "tlsCert", "tls_key": "tlsKey"}
        named = ", ".join(names[each] for each in settings.split(", "))
        raise BadArgument(f"option {named}: {why}") from None
    return found


def source_of(text: str, asked: Asked = AS_USUAL) -> Source:
    """Returns the source that ``text`` names, with the settings ``asked``. Raises ``BadArgument``, and
    ``Unreadable`` for a URL scheme that no installed package reads."""
    if "://" in text and not is_url(text):
        from repl.spark.remote import RemoteDirectory

        return RemoteDirectory.of(text)
    source = local_or_live(text)
    if isinstance(source, LiveSource):
        return replace(
            source,
            founding=asked.group,
            give_up_s=asked.give_up_s,
            tls=asked.tls,
            token_file=asked.token_file,
        )
    return source
