"""The target that ``--to`` names: a directory, or a prefix of an object store."""

from __future__ import annotations

import os

from repl.export.manifest import BadTarget
from repl.export.objects import object_target
from repl.export.target import LocalTarget, Target


def target_of(text: str, *, one_exporter: bool = False) -> Target:
    """Returns the target that ``--to`` names. Raises ``BadTarget``; looks at nothing yet but the kind of store."""
    if "://" in text and not text.startswith("file://"):
        return object_target(text, one_exporter=one_exporter)
    path = os.path.abspath(text.removeprefix("file://"))
    if os.path.lexists(path) and not os.path.isdir(path):
        raise BadTarget(f"{text}: is no directory")
    return LocalTarget(path, text)
