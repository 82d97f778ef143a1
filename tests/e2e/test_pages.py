"""README.md and every page, pasted block by block as a reader would: nothing fails, and outputs are as shown."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import time
import venv
from pathlib import Path

import pytest

from tests.e2e.pasting import Person
from tests.pasted import PAGES, ROOT, RUN, blocks

_FIRST = ("README.md", "docs/quick-start.md")
_CLONED = ("vlsn", "feeder", "replica", "repl", "docs/man", "README.md", "LICENSE", "pyproject.toml")
_OFFLINE = {
    "PYTHONPATH": sysconfig.get_path("purelib"),
    "PIP_NO_INDEX": "1",
    "PIP_NO_DEPS": "1",
    "PIP_NO_BUILD_ISOLATION": "0",  # so pip spells that there is none
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
"""Let `pip install …` run as it is typed: what vlsnlog depends on is there, so no index is asked."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of an environment with ``pip`` and nothing else."""
    place = tmp_path_factory.mktemp("env")
    venv.create(place, symlinks=True, with_pip=True)
    return place / "bin"


def cloned(place: Path) -> Path:
    """Copies what `pip install .` needs of a clone."""
    place.mkdir()
    for name in _CLONED:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, place / name)
    return place


def pasted(page: Path, directory: Path, programs: Path) -> int:
    """Pastes all blocks of a page that run, or are files. Returns how many ran."""
    ran = 0
    with Person(directory, programs, _OFFLINE) as person:
        for block in blocks(page):
            if not block.reason and (block.language in RUN or block.file):
                began = time.monotonic()
                person.paste(block)
                print(f"{time.monotonic() - began:6.1f} s  {block}")
                ran += block.language in RUN
    return ran


@pytest.mark.feature("pages")
@pytest.mark.parametrize("name", _FIRST)
def test_the_first_pages_install_and_run_as_pasted(name: str, programs: Path, tmp_path: Path) -> None:
    assert pasted(ROOT / name, cloned(tmp_path / "clone"), programs) > 2


@pytest.mark.parametrize(
    "page",
    [
        page
        for page in PAGES
        if str(page.relative_to(ROOT)) not in _FIRST
        and any(not each.reason and each.language in RUN for each in blocks(page))
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_each_other_page_runs_as_pasted(page: Path, programs: Path, tmp_path: Path) -> None:
    clone = cloned(tmp_path / "clone")
    subprocess.run([programs / "pip", "install", "."], cwd=clone, check=True, env=os.environ | _OFFLINE)
    print(f"{pasted(page, clone, programs)} blocks of {page.name} ran")
