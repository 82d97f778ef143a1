"""The walk of docs/three-hosts.md, typed as it stands there on hosts of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.e2e.hosts import OPERATOR, all_hosts
from tests.pasted import is_as_shown

PAGE: Final = Path(__file__).parents[2] / "docs" / "three-hosts.md"
_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$|^<!-- lost: (\w+) -->$", re.MULTILINE | re.DOTALL)
_PROMPT: Final = re.compile(r"(\w+)\$ (.*)")


class Typed(NamedTuple):
    """A command, the lines that the page shows below it, and its host. No command: the host is lost."""

    host: str
    command: str
    shown: list[str]


def walk(section: str) -> Iterator[Typed]:
    """Yields what a person types. Lines that begin with ``> `` go on with the command."""
    for kind, text, lost in _BLOCK.findall(section):
        if lost:
            yield Typed(lost, "", [])
        elif kind == "toml":
            yield Typed(OPERATOR, f"cat > node.toml <<'END'\n{text}END", [])
        elif kind == "console":
            for part in re.split(r"^(?=\w+\$ )", text, flags=re.MULTILINE)[1:]:
                lines = part.splitlines()
                prompt = _PROMPT.fullmatch(lines[0])
                assert prompt is not None
                more = [line[2:] for line in lines[1:] if line.startswith("> ")]
                yield Typed(prompt[1], "\n".join([prompt[2], *more]), lines[1 + len(more) :])


def test_the_walk_of_three_hosts_is_as_the_page_shows_it(tmp_path: Path) -> None:
    section = PAGE.read_text()
    (unit,) = (text for kind, text, _ in _BLOCK.findall(section) if kind == "ini")
    steps = list(walk(section))
    assert len(steps) > 40
    with all_hosts(tmp_path / "hosts", unit) as hosts:
        for step in steps:
            host = hosts[step.host]
            if not step.command:
                host.lose()
                continue
            status, output = host.type(step.command)
            logged = "".join(f"{each.name}: {each.logged()[-1500:]}\n" for each in hosts.values())
            assert status == 0, f"{step.host}$ {step.command}\n{output}\n{logged}"
            assert is_as_shown(output, step.shown), f"{step.host}$ {step.command}\n{output}\nis not\n{step.shown}\n"


def test_the_comparison_tells_outputs_apart() -> None:
    shown = ["…", "n4  electable …", "…"]
    assert is_as_shown("a\nb\nn4   electable 1 yes\n", shown)
    assert is_as_shown("n4 electable 1\nc\n", shown)
    assert not is_as_shown("n4 secondary 1\n", shown)
    assert not is_as_shown("a\n", [])
    assert not is_as_shown("ab\n", ["a"])
    assert is_as_shown("", ["…"])
