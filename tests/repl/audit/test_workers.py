"""The archive that Spark's workers on a cluster import from: of a directory, and of the wheel that it came in, which
the driver imports from, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

from repl.audit.workers import ARCHIVE, PACKAGES, archive

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "repl" / "audit" / "page"


def test_a_worker_imports_what_lies_in_a_directory_or_in_a_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "vlsnlog-1-py3-none-any.whl"
    wheel.write_bytes(archive(ROOT, tmp_path).read_bytes())
    with ZipFile(wheel, "a") as file:
        for name in ("rules.json", "style.css"):
            file.write(PAGE / name, PAGE.relative_to(ROOT) / name)
    (tmp_path / "of_wheel").mkdir()
    made = archive(wheel, tmp_path / "of_wheel")
    assert made.name == ARCHIVE, "the ending is what Spark goes by"
    assert {name.partition("/")[0] for name in ZipFile(made).namelist()} == {*PACKAGES, "vlsnlog"}
    found = subprocess.run(
        [sys.executable, "-c", "import repl.audit.page.page, repl.audit.tasks; print(repl.__file__)"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(made)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == f"{made}/repl/__init__.py\n"
