"""A short, repeatable part of ``make fuzz-http``: calls that the OpenAPI document allows and forbids, on real nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.group import Group
from tests.reference.fuzz import WRONG_ALONE, calls_of, fuzz, modes_of

pytestmark = pytest.mark.long
EXAMPLES = 4
SEED = 29


def test_every_call_answers_as_the_document_says(tmp_path: Path) -> None:
    group = Group(tmp_path)
    try:
        group.start()
        url = group.master
        called = set()
        for name, operation in calls_of(url):
            for mode in modes_of(name):
                fuzz(url, operation, mode, examples=EXAMPLES, at=SEED)
            called.add(name)
        assert len(called) > 69 and called > WRONG_ALONE.keys()
        assert group.faults() == []
    finally:
        group.end()
