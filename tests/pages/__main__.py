"""``make reference``: makes the pages of ``docs/reference`` and ``docs/man`` from the code.

    python -m tests.pages

Each page says how it was made. ``test_reference`` fails if a page is older than the code.
"""

from __future__ import annotations

import sys

from tests.pages import MAN, REFERENCE, made
from tests.pages.man import man_pages


def main() -> int:
    for directory, pages in ((REFERENCE, made()), (MAN, man_pages())):
        directory.mkdir(exist_ok=True)
        for name, text in pages.items():
            path = directory / name
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
                print(f"changed {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
