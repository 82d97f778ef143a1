"""A group of real node processes on free ports, driven from outside.

Everything is learned as a stranger would: by HTTP, by the processes' exit statuses, by their files once they are
stopped.  Whatever has to come true is waited for (``until``), and a wait that ends in vain says what every node
said last.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from repl.cluster import LOG_FILE, Node, free_base_port, prepare
from repl.net.network import AiohttpNetwork
from tests.e2e.calls import OCTETS, Answer, call

WAIT_S = 90.0
POLL_S = 0.02
UNTROUBLED_S = 30.0
"""A master that a loaded machine keeps from answering for a while stays the master: tests count what it logs."""
NAMES = ("n1", "n2", "n3")


@dataclass(frozen=True, slots=True)
class Standing:
    """One node as it is when nothing is the matter with it."""

    process: str
    state: str
    last: int


class Group:
    """Nodes n1 to n3 under ``directory``; n1 leads first.  Nothing runs before ``start``.  Unless the settings say
    otherwise, calls may do everything."""

    def __init__(self, directory: Path, **settings: str | int | float) -> None:
        self.directory = directory
        given = {"anonymous": "all", **settings}
        cluster = prepare(directory, AiohttpNetwork(), base_port=free_base_port(), settings=given)
        self._nodes: dict[str, Node] = {node.name: node for node in cluster.nodes}
        self.urls = {name: node.url for name, node in self._nodes.items()}

    @property
    def leader(self) -> str:
        """The name of the node that leads, in the highest term; waits until one does."""
        found: list[tuple[int, str]] = []

        def leads() -> bool:
            told = {name: self.status(name) for name in NAMES if self._nodes[name].running}
            found[:] = [(status["term"], name) for name, status in told.items() if status.get("state") == "MASTER"]
            return bool(found)

        self.until(leads, "a node leads")
        return max(found)[1]

    @property
    def master(self) -> str:
        return self.urls[self.leader]

    def lead(self, name: str) -> None:
        """Hands mastership to ``name``, whichever node has it now."""

        def leads() -> bool:
            call("POST", f"{self.master}/v1/admin/transfer?to={name}")
            return self.status(name).get("state") == "MASTER"

        self.until(leads, f"{name} leads")
        self.settle()

    def launch(self, *names: str) -> None:
        """Starts the processes and waits for nothing."""
        for name in names or NAMES:
            self._nodes[name].start()

    def start(self, *names: str) -> None:
        """Returns once the master takes appends on a majority and every node that was started serves."""
        self.launch(*names)
        self.settle()

    def settle(self) -> int:
        """Waits until every running node is whole and has all of the log; its last VLSN."""

        def settled() -> bool:
            told = [self.status(name) for name in NAMES if self._nodes[name].running]
            ends = {status.get("dtvlsn") for status in told} | {status["range"]["last"] for status in told if status}
            return all(status.get("state") in ("MASTER", "REPLICA") for status in told) and len(ends) == 1

        self.until(settled, "every running node has the whole log")
        return int(self.status(self.leader)["range"]["last"])

    def path(self, name: str) -> Path:
        return self._nodes[name].directory

    def config(self, name: str) -> Path:
        return self._nodes[name].config_path

    def pid(self, name: str) -> int:
        pid = self._nodes[name].pid
        assert pid is not None
        return pid

    def running(self, name: str) -> bool:
        return self._nodes[name].running

    def kill(self, *names: str) -> None:
        """SIGKILL; returns when the processes are gone."""
        for name in names:
            self._nodes[name].kill()

    def stop(self, *names: str) -> None:
        """SIGTERM to all at once; each must end by itself, in time, with status 0."""
        for name in names:
            self._nodes[name].send(signal.SIGTERM)
        self.until(lambda: not any(map(self.running, names)), "the nodes have ended")
        assert [self._nodes[name].ended for name in names] == [0] * len(names), self.last_words()

    def send(self, name: str, number: signal.Signals) -> None:
        self._nodes[name].send(number)

    def end(self) -> None:
        self.kill(*NAMES)

    def status(self, name: str) -> dict[str, Any]:
        """Returns what the node says of itself; empty while it says nothing."""
        try:
            answer = call("GET", f"{self.urls[name]}/v1/status", timeout_s=20)
        except OSError:
            return {}
        document: dict[str, Any] = answer.json()
        return document

    def standing(self) -> dict[str, Standing]:
        """Returns the standing of every running node, all of the log on each."""
        self.settle()
        told = {name: self.status(name) for name in NAMES if self._nodes[name].running}
        return {name: Standing(each["process"], each["state"], each["range"]["last"]) for name, each in told.items()}

    def append(self, *values: bytes, acks: str = "majority") -> list[int]:
        """Each value in a request of its own; their VLSNs.  Too few replicas yet (one was stopped, the other still
        connects) is a refusal that a client sends again, so this one does."""
        vlsns = []
        for value in values:
            answers: list[Answer] = []

            def taken(value: bytes = value, answers: list[Answer] = answers) -> bool:
                answers.append(self.post(value, query=f"?acks={acks}"))
                refusals = (b"insufficient-replicas", b"no-master")
                return not any(refusal in answers[-1].body[:60] for refusal in refusals)

            self.until(taken, "enough replicas are connected")
            vlsns.append(int(answers[-1].ok()["first"]))
        return vlsns

    def post(self, value: bytes, *, name: str = "", query: str = "") -> Answer:
        return call("POST", f"{self.urls[name or self.leader]}/v1/entries{query}", body=value, headers=OCTETS)

    def feeder(self, name: str) -> dict[str, Any]:
        """Returns what the master says of its feed to ``name``; empty when there is none."""
        feeders: list[dict[str, Any]] = self.status(self.leader).get("feeders") or []
        return next((each for each in feeders if each["replica"] == name), {})

    def until(self, holds: Callable[[], bool], what: str, *, seconds: float = WAIT_S) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}\n{self.last_words()}"
            time.sleep(POLL_S)

    def faults(self) -> list[str]:
        """Lists the faults that nodes logged: lines of ERROR or worse, and tracebacks."""
        logged = [(name, line) for name in NAMES for line in (self.path(name) / LOG_FILE).read_text().splitlines()]
        return [f"{name}: {line}" for name, line in logged if re.search(r" (ERROR|CRITICAL) |^Traceback", line)]

    def last_words(self) -> str:
        return "\n".join(
            f"{name}: ended {node.ended}, says {self.status(name) or 'nothing'}, logged {node.last_words()}"
            for name, node in self._nodes.items()
        )

    @contextmanager
    def unharmed(self, *, appended: int = 0) -> Iterator[None]:
        """Checks that the body leaves every node's process, its state and its log as they were. So many entries it may
        append; and appends go on with the very next VLSN."""
        before = self.standing()
        yield
        after = {name: replace(each, last=each.last + appended) for name, each in before.items()}
        assert self.standing() == after
        went_on = self.append(b"still here")
        assert went_on == [after["n1"].last + 1], (went_on, after, self.standing(), self.last_words())
