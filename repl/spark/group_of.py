"""Finds the group of the sources by the unique name of its log, since several groups may have the same name.

    http://a:1   'demo' founded as 9f1c04aa52b0e371-1     from a node's status, or from a directory's first entry
    http://b:1   'demo' founded as 04d2c7714be09a55-1     refused together with the first, or if the first is expected
    data/old     'demo'                                   of an earlier version: it fits any group of that name

Sources of different groups in one load are refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, TypeVar

from repl.audit.live import LiveSource
from repl.audit.source import Gone, Unreadable
from repl.spark.options import Asked
from vlsn.errors import BadArgument, WrongGroup

T = TypeVar("T")
R = TypeVar("R")

ROUND_S: Final = 2.0
"""Each node has this many seconds to report its group, before all nodes are asked again."""


class Group(NamedTuple):
    """A group as a source reports it. ``founding`` is the identity of its log; "" if the source does not know it."""

    name: str
    founding: str

    def __str__(self) -> str:
        return f"{self.name!r}" + (f" (founded as {self.founding})" if self.founding else "")


def one_group(found: Mapping[str, Group], meant: str) -> str:
    """Checks that all sources belong to one group, and to the group with identity ``meant`` (empty: any). Returns
    the group's identity, or "" if no source knows it. Raises ``BadArgument`` for sources of several groups, and
    ``WrongGroup``."""
    known = {group.founding for group in found.values() if group.founding}
    if len({group.name for group in found.values()}) > 1 or len(known) > 1:
        of_each = {group: text for text, group in found.items()}
        named = ", ".join(f"{text} is of {group}" for group, text in of_each.items())
        raise BadArgument(f"one load reads one group: {named}")
    founding = next(iter(known), "")
    if meant and founding not in ("", meant):
        text, group = next((text, group) for text, group in found.items() if group.founding)
        raise WrongGroup(
            f"{text} is of group {group}, and the one that was founded as {meant} is meant: it is another group, or "
            "this one was founded anew"
        )
    return founding or meant


def group_of_nodes(urls: Sequence[str], asked: Asked) -> str:
    """Asks all nodes in ``urls`` for their group until one answers; returns and raises as ``one_group``. Also raises
    ``Unreadable`` if no node answers for ``asked.give_up_s``."""
    deadline = time.monotonic() + asked.give_up_s
    while True:
        left_s = max(min(ROUND_S, deadline - time.monotonic()), 0.1)
        said = at_once(partial(_group_of, replace(asked, group="", give_up_s=left_s)), urls)
        found = {url: group for url, group in zip(urls, said, strict=True) if isinstance(group, Group)}
        if found:
            return one_group(found, asked.group)
        errors = [error for error in said if isinstance(error, Unreadable)]
        if time.monotonic() >= deadline or not all(isinstance(error, Gone) for error in errors):
            raise next((error for error in errors if not isinstance(error, Gone)), errors[0])


def _group_of(asked: Asked, url: str) -> Group | Unreadable:
    try:
        source = LiveSource(url.rstrip("/"), give_up_s=asked.give_up_s, tls=asked.tls, token_file=asked.token_file)
        return Group(*source.group())
    except Unreadable as error:
        return error


def at_once(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Returns the results of ``work`` on each item, in the order of the items. Several items run in parallel
    threads, so that the waits for several nodes overlap."""
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(len(items), "vlsnlog-source") as threads:
        return list(threads.map(work, items))
