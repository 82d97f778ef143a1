"""The one Spark of these tests: its start is most of what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from repl.audit.session import spark_context


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    with spark_context("local[2]") as context:
        yield context
