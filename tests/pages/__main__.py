"""``make reference``: makes the pages of ``docs/reference`` from the code.

    python -m tests.pages

Each page says how it was made. ``test_reference`` fails if a page is older than the code.
"""

from __future__ import annotations

import sys

from tests.pages import REFERENCE, made


def main() -> int:
    REFERENCE.mkdir(exist_ok=True)
    for name, text in made().items():
        path = REFERENCE / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"changed {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
