"""One Spark session for all tests that need a real one: its start is most of what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from repl.audit.session import spark_context


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    with spark_context("local[2]") as context:
        yield SparkSession(context)
