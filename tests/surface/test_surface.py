"""The public surface as type checkers see it: right uses pass, wrong ones do not, and every type has a public name."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import numpy.typing
import pyarrow as pa
import pytest

import repl
import vlsn
import vlsnlog
from repl.arrow import read as arrow_read
from tests.repl.client.test_parity import OF_CONSUMERS, OF_THREADS, OF_WORKERS
from vlsn.errors import VlsnLogError

HERE = Path(__file__).parent
USES, MISUSES = HERE / "uses.py", HERE / "misuses.py"
REFUSED = re.compile(r"  # type: ignore\[.*\]$")
OURS = ("vlsn.", "feeder.", "replica.", "repl.")
STRICT = {"typeCheckingMode": "strict", "enableTypeIgnoreComments": False}
INSIDE: dict[str, set[str] | None] = {
    "Client": {"forked"},
    "SyncClient": {"forked", *OF_THREADS},
    "Appended": {"document"},
    "Consumer": OF_CONSUMERS,
    "Destinations": OF_WORKERS,
    "Endpoints": {"called_durable", "close", "look", "readable", "request"},
    "GroupDurability": {"exceeds", "levels", "lower"},
    "LogOptions": {"retention"},
    "Messages": {"column", "left_at"},
    "Positions": {"group"},
    "Rows": None,
    "TlsFiles": {"of_environment", "stamp"},
    "SinkState": None,
    "VlsnRange": None,
    "Histogram": None,
    "IndexStats": None,
    "LogStats": None,
    "Seconds": None,
    "Status": None,
}
"""Public names of public types that other parts of vlsnlog call, and no program does; None: all of them."""
NUMPY = {"np": np, "npt": np.typing}
"""Names that modules of the client import for type checkers alone."""
SEAMS = {"Keeper", "Network", "OfAnotherLoop"}
"""Types of arguments that are a client, or a simulated network; and what only clients give one another."""


# The two checkers.


def checked(place: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs a checker of this tree, whichever is installed."""
    return subprocess.run(
        [sys.executable, "-m", *command, USES.name, MISUSES.name],
        cwd=place,
        env=os.environ | {"PYTHONPATH": str(HERE.parents[1])},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def mypy(place: Path) -> set[tuple[str, int]]:
    done = checked(place, "mypy", "--strict", "--output=json", "--no-error-summary")
    assert done.returncode in (0, 1) and not done.stderr, done
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {(each["file"], each["line"]) for each in found if each["severity"] == "error"}


def pyright(place: Path) -> set[tuple[str, int]]:
    (place / "pyrightconfig.json").write_text(json.dumps(STRICT))
    done = checked(place, "basedpyright", "--outputjson", "--pythonpath", sys.executable)
    assert done.returncode in (0, 1), done
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == 2, done
    return {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1)
        for each in found["generalDiagnostics"]
        if each["severity"] == "error"
    }


@pytest.mark.parametrize("check", [mypy, pyright])
def test_a_type_checker_passes_right_uses_and_refuses_each_wrong_one(
    check: Callable[[Path], set[tuple[str, int]]], tmp_path: Path
) -> None:
    """Both files are checked as a program's would be, in a directory of their own, and without the marks."""
    for file in (USES, MISUSES):
        text = "".join(f"{REFUSED.sub('', line)}\n" for line in file.read_text().splitlines())
        (tmp_path / file.name).write_text(text)
    lines = enumerate(MISUSES.read_text().splitlines(), 1)
    wrong = {(MISUSES.name, number) for number, line in lines if REFUSED.search(line)}
    assert len(wrong) > 40
    assert check(tmp_path) == wrong


# Names.


def types_in(hint: Any) -> Iterator[type]:
    """Yields our own types that a hint names."""
    origin = typing.get_origin(hint)
    for each in (hint, origin):
        if isinstance(each, type) and typing.get_origin(each) is None and each.__module__.startswith(OURS):
            yield each
    inner = hint if isinstance(hint, list) else typing.get_args(hint)
    for each in inner:
        yield from types_in(each)


def calls(kind: type) -> dict[str, list[FunctionType]]:
    """Returns public methods and properties of our own, with their overloads, by name."""
    found: dict[str, list[FunctionType]] = {}
    for name, member in inspect.getmembers(kind):
        call = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if isinstance(call, FunctionType) and call.__module__.startswith(OURS) and not name.startswith("_"):
            found[name] = [call, *typing.get_overloads(call)]  # type: ignore[list-item]
    return found


def programs(kind: type) -> dict[str, list[FunctionType]]:
    """Returns the ``calls`` that a program makes."""
    inside = INSIDE.get(kind.__name__, set())
    return {} if inside is None else {name: each for name, each in calls(kind).items() if name not in inside}


@pytest.mark.parametrize("package", [repl, vlsn, vlsnlog])
def test_every_type_that_a_program_may_annotate_has_a_public_name(package: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(arrow_read, "pa", pa, raising=False)  # imported for typing alone
    public = [getattr(package, name) for name in package.__all__]
    hidden = set()
    for each in public:
        asked = [each] if isinstance(each, FunctionType) else []
        if isinstance(each, type) and not issubclass(each, VlsnLogError):
            asked = [call for found in programs(each).values() for call in found]
        named = {
            kind
            for call in asked
            for hint in typing.get_type_hints(call, localns=NUMPY).values()
            for kind in types_in(hint)
        }
        hidden |= {
            f"{each.__name__} names {kind.__name__}"
            for kind in named
            if kind not in public and kind.__name__ not in SEAMS
        }
    assert hidden == set()


def test_the_sample_uses_all_that_is_public() -> None:
    """By the arguments of its functions: their calls are the calls that a program may make on these types."""
    public = {name: getattr(package, name) for package in (repl, vlsn, vlsnlog) for name in package.__all__}
    kinds = {
        name: kind for name, kind in public.items() if isinstance(kind, type) and not issubclass(kind, VlsnLogError)
    }
    used: dict[str, set[str]] = {}
    for function in ast.walk(ast.parse(USES.read_text())):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        named = {name: name for name in kinds}
        named |= {
            each.arg: ast.unparse(each.annotation).split("[")[0] for each in function.args.args if each.annotation
        }
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in named:
                used.setdefault(named[node.value.id], set()).add(node.attr)
    wanted = {f"{name}.{call}" for name, kind in kinds.items() for call in programs(kind)}
    assert len(wanted) > 150
    assert wanted - {f"{name}.{call}" for name, found in used.items() for call in found} == set()
