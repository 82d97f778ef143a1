"""Builds the wheel of ``vlsnlog-client``: the package ``vlsnlog`` with copies of the modules that the client needs.

    repl/client/connect.py ─► vlsnlog/_repl/client/connect.py      from vlsn.errors import …
                                                                   ─► from vlsnlog._vlsn.errors import …

The modules are those that ``vlsnlog/__init__.py`` names, and all that they import, for type checkers too. Only lines
of imports change, so that a traceback of the client has the line numbers of the source.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGES = ("repl", "vlsn")
LEFT_OUT = frozenset({"repl.arrow.read"})
"""Modules that the server's distribution alone has, although ``vlsnlog`` names them."""
_IMPORT = re.compile(rf"^(\s*from )({'|'.join(PACKAGES)})(?=[. ])", re.MULTILINE)


def source_of(module: str) -> Path | None:
    """Returns the file of a module or package of this project; None if it is not one."""
    place = ROOT / module.replace(".", "/")
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if module.partition(".")[0] in PACKAGES and path.is_file():
            return path
    return None


def named_in_front() -> set[str]:
    """Returns the modules of the names that ``vlsnlog`` exports."""
    for node in ast.parse((HERE / "vlsnlog" / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_FROM":
            return set(ast.literal_eval(node.value).values()) - LEFT_OUT
    raise LookupError("vlsnlog/__init__.py has no _FROM")


def imported_by(source: str) -> set[str]:
    """Returns the modules of this project that a module imports anywhere."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return {each for each in found if source_of(each)} - LEFT_OUT


def modules(first: Iterable[str]) -> set[str]:
    """Returns the modules in ``first``, all that they import, and the packages of these."""
    found: set[str] = set()
    waiting = [*first, "vlsn.errors"]
    while waiting:
        module = waiting.pop()
        if module in found:
            continue
        found.add(module)
        waiting += filter(None, [module.rpartition(".")[0]])
        if module not in PACKAGES:
            path = source_of(module)
            assert path is not None, module
            waiting += imported_by(path.read_text())
    return found


def rewritten(source: str) -> str:
    """Returns the source with its imports of this project's packages renamed."""
    return _IMPORT.sub(r"\1vlsnlog._\2", source)


def write_parts(target: Path) -> list[str]:
    """Writes the package's files that are not copied as they are. Returns their paths below ``target``."""
    front = rewritten((HERE / "vlsnlog" / "__init__.py").read_text())
    files = {"vlsnlog/__init__.py": "".join(line for line in front.splitlines(True) if not _left_out(line))}
    for module in modules(named_in_front()):
        path = source_of(module)
        assert path is not None, module
        text = f'"""Parts of the client, from ``{module}``."""\n' if module in PACKAGES else rewritten(path.read_text())
        files[f"vlsnlog/_{path.relative_to(ROOT)}"] = text
    for name, text in files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(text)
    return sorted(files)


def _left_out(line: str) -> bool:
    return any(line.lstrip().startswith(f"from vlsnlog._{module} import") for module in LEFT_OUT)


class Parts(BuildHookInterface[Any]):
    """Adds the client's parts to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        target = Path(self.directory) / ".vlsnlog-client"
        shutil.rmtree(target, ignore_errors=True)
        build_data["force_include"] |= {str(target / name): name for name in write_parts(target)}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(Path(self.directory) / ".vlsnlog-client", ignore_errors=True)
