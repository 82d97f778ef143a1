"""Sets the interpreter and the packages of Spark's Python workers, before the first of this project's tasks runs.

PySpark starts its workers with ``python3`` of the PATH unless ``PYSPARK_PYTHON`` says otherwise. The ``python3`` of the
PATH may be another interpreter than the driver's, one without ``repl``. This module does not change a
``PYSPARK_PYTHON`` that is set.

    local      the workers get the path of these packages
    cluster    the packages are sent as ``vlsnlog.zip``, made of their sources or of the wheel that they came in,
               because Spark passes ``--py-files x.whl`` to the driver's Python, but not to the workers'
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from shutil import copyfile
from tempfile import mkdtemp
from typing import Any, Final
from zipfile import ZIP_DEFLATED, ZipFile

PACKAGES: Final = ("vlsn", "feeder", "replica", "repl")
FRONT: Final = "repl/front"
"""The directory of the package ``vlsnlog`` in a tree of sources; a wheel has the package beside the others."""
ARCHIVE: Final = "vlsnlog.zip"
_UNSET: Final = "python3"
"""The interpreter that PySpark uses if none is configured."""


def equip(context: Any) -> None:
    """Prepares this SparkContext for its later jobs; a second call changes nothing."""
    if context.pythonExec == _UNSET and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
        os.environ["PYSPARK_PYTHON"] = sys.executable  # PySpark may also start workers without the context's setting
    root = Path(__file__).resolve().parents[2]
    if context.master.startswith("local"):
        before = context.environment.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        if str(root) not in before.split(os.pathsep):
            context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), str(root / FRONT), before]))
    elif not any(os.path.basename(path) == ARCHIVE for path in context._python_includes):
        context.addPyFile(str(archive(root, Path(mkdtemp(prefix="vlsnlog-spark-")))))


def archive(root: Path, directory: Path) -> Path:
    """Writes the packages' sources as one archive that Python can import from. Returns the archive's path. ``root`` is
    the directory of the packages, or a wheel, which already is such an archive."""
    path = directory / ARCHIVE
    if root.is_file():
        copyfile(root, path)
        return path
    with ZipFile(path, "w", ZIP_DEFLATED) as file:
        for package in PACKAGES:
            for source in sorted((root / package).rglob("*.py")):
                if not source.is_relative_to(root / FRONT):
                    file.write(source, source.relative_to(root))
        place = root / FRONT if (root / FRONT).is_dir() else root
        for source in sorted((place / "vlsnlog").rglob("*.py")):
            file.write(source, source.relative_to(place))
    return path
