"""The pages that are made from the code, and the site of all pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

REFERENCE: Final = Path(__file__).parents[2] / "docs" / "reference"
MAN: Final = Path(__file__).parents[2] / "docs" / "man"


def made() -> dict[str, str]:
    """Returns the text of each file of ``docs/reference``, by its name. ``man.man_pages`` returns those of ``MAN``."""
    from repl.cli.config_schema import node_schema
    from tests.pages import commands, settings, surface

    return {
        settings.SCHEMA_FILE: json.dumps(node_schema(), indent=2, ensure_ascii=False) + "\n",
        "settings.md": settings.page(),
        "cli.md": commands.page(),
        "python.md": surface.page(),
    }
