"""Members of a real group change, by the command line: one joins, leads, leaves, and the master moves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from repl.cluster import Node, free_base_port
from tests.e2e.commands import Ended, run
from tests.e2e.group import Group

pytestmark = pytest.mark.feature("membership")


def shell(group: Group, *arguments: str) -> Ended:
    urls = ",".join(group.urls.values())
    return run("group", *arguments, "--url", urls)


def shown(group: Group) -> dict[str, Any]:
    ended = shell(group, "show", "--json")
    assert ended.status == 0, ended
    document: dict[str, Any] = json.loads(ended.out)
    return document


def member(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next((each for each in document["members"] if each["name"] == name), {})


@contextmanager
def newcomer(group: Group, directory: Path) -> Iterator[Node]:
    """n4, running, told all members; nobody else knows of it."""
    url = f"http://127.0.0.1:{free_base_port(1)}"
    directory.mkdir()
    members = {**group.urls, "n4": url}
    key = group.directory / "group.key"
    lines = ['name = "n4"', 'group = "vlsnlog"', 'dir = "."', f'group_key = "{key}"', "[members]"]
    (directory / "node.toml").write_text("\n".join(lines + [f'{name} = "{at}"' for name, at in members.items()]))
    node = Node("n4", directory, url)
    node.start()
    try:
        yield node
    finally:
        node.kill()


def added(ended: Ended) -> bool:
    """Says whether it is a member now; one whose answer did not come in time may be one already."""
    return ended.status == 0 or "is a member already" in ended.err


def test_a_node_joins_leads_and_leaves_again(hurt: Group, tmp_path: Path) -> None:
    told = hurt.append(*(b"before %d" % number for number in range(20)))
    with newcomer(hurt, tmp_path / "n4") as node:
        hurt.until(lambda: added(shell(hurt, "add", f"n4={node.url}")), "n4 answers, and is added")
        document = shown(hurt)
        assert document["durable"] and document["master"] == "n1"
        assert member(document, "n4")["electable"] and member(document, "n4")["fed"]
        again = shell(hurt, "add", f"n4={node.url}")
        assert again.refused() == f"vlsnlog: n4 is a member already, at {node.url}\n"
        moved = shell(hurt, "transfer-master", "n4")
        assert (moved.status, moved.out) == (0, b"n1 has handed over to n4\n")
        hurt.until(lambda: shown(hurt)["master"] == "n4", "n4 leads, as the others say")
        assert shell(hurt, "priority", "n2", "0", "--json").status == 0
        assert member(shown(hurt), "n2")["priority"] == 0
        assert shell(hurt, "priority", "n2", "1").status == 0
        # The master removes itself: another one leads then.
        removed = shell(hurt, "remove", "n4")
        assert removed.status == 0 and b"n4" not in removed.out.split(b"\n", 2)[2], removed
        hurt.until(lambda: shown(hurt)["master"] in hurt.urls, "one of the others leads")
        status = shell(hurt, "remove", "n9")
        assert "the group has no member n9" in status.refused()
    hurt.settle()
    for name in hurt.urls:
        read = run("read", "--url", hurt.urls[name], "--from", str(told[0]), "--to", str(told[-1]))
        assert read.out.splitlines() == [b"before %d" % number for number in range(20)]
