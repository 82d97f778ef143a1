"""A group of real processes, audited while it writes, loses masters, elects and rolls back: no false alarm."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import pytest

from repl.audit.source import Unreadable
from tests.e2e.calls import OCTETS, call
from tests.e2e.group import NAMES, Group
from tests.repl.audit.jobs import audited
from vlsn.limits import MIB

pytestmark = pytest.mark.real

ROUNDS = 3
PAUSE_S = 0.3


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path / "group", segment_bytes=MIB)
    try:
        made.start()
        yield made
    finally:
        made.end()


class Writers:
    """Threads that append to every node on its own word, so that a deposed master has something to roll back."""

    def __init__(self, group: Group) -> None:
        self._group, self._over = group, Event()
        self._threads = [Thread(target=self._write, args=(name,)) for name in NAMES]
        self.written = 0

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _write(self, name: str) -> None:
        number = 0
        while not self._over.is_set():
            with suppress(OSError, ValueError):  # it is down, or ends within the answer
                url = f"{self._group.urls[name]}/v1/entries?acks=none&timeout=1"
                value = b"%s %d " % (name.encode(), number) + b"." * 2000
                self.written += call("POST", url, body=value, headers=OCTETS, timeout_s=5).status == 200
            number += 1
            self._over.wait(0.002)


def test_a_group_that_writes_and_changes_masters_has_no_finding(group: Group) -> None:
    with Writers(group) as writers:
        for _ in range(ROUNDS):
            time.sleep(PAUSE_S)
            paths, urls = [group.path(name) for name in NAMES], list(group.urls.values())
            for sources in (paths, urls, [paths[0], *urls[1:]]):
                report = audited(*sources)
                assert report.findings == []
                assert all(source.live for source in report.sources)
            killed = group.leader
            group.kill(killed)
            report = audited(*paths)  # one of them stopped, one of the others elected meanwhile
            assert report.findings == []
            assert {source.node for source in report.sources if not source.live} == {killed}
            with pytest.raises(Unreadable, match="is the node up"):
                audited(group.urls[killed], *(urls for name, urls in group.urls.items() if name != killed))
            group.launch(killed)
            group.until(lambda killed=killed: bool(group.status(killed)), f"{killed} answers")  # type: ignore[misc]
    assert writers.written > ROUNDS
    group.settle()
    group.stop(*NAMES)
    report = audited(*(group.path(name) for name in NAMES))
    assert (report.equal, report.findings) == (True, [])
