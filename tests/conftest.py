"""Settings of the suite: Hypothesis' profiles, chosen by ``HYPOTHESIS_PROFILE``.

``ci`` draws the same examples each time, so that a red run is red again; ``dev`` (the default) draws new
ones; ``long`` is for a night.

Files go to whichever worker is free, in the order of collection: those that take longest come first, so that none is
left alone in the end.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

_SLOW_MACHINE = [HealthCheck.too_slow]

os.environ["XDG_CONFIG_HOME"] = "/nonexistent/of-tests"
"""Contexts of whoever runs the tests reach no command."""

settings.register_profile("dev", max_examples=100, deadline=None, suppress_health_check=_SLOW_MACHINE)
settings.register_profile(
    "ci", max_examples=150, derandomize=True, deadline=None, print_blob=True, suppress_health_check=_SLOW_MACHINE
)
settings.register_profile("long", max_examples=5_000, deadline=None, suppress_health_check=_SLOW_MACHINE)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

FIRST: Final = (
    "test_spark_pipeline",
    "test_standalone",
    "test_export",
    "test_joined_logs",
    "test_exporting",
    "test_stream",
    "test_crash_points",
    "test_restarts",
    "test_later_versions",
    "test_hostile",
    "test_injected",
    "test_failing_calls",
)
"""Files whose ``long`` tests take half a minute or more."""


def pytest_configure(config: pytest.Config) -> None:
    """Takes SIGINT back where the suite was started with it ignored, as background jobs are: children inherit that.
    Nodes on loopback make the keys of their groups in a directory of the suite."""
    state = TemporaryDirectory(prefix="vlsnlog-state-")
    os.environ["XDG_STATE_HOME"] = state.name
    config.add_cleanup(state.cleanup)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Makes every test of real processes ``long`` but for the one run of each ``feature``."""
    for item in items:
        if item.get_closest_marker("real") and not item.get_closest_marker("feature"):
            item.add_marker(pytest.mark.long)
    items.sort(key=lambda item: not (item.get_closest_marker("long") and item.path.stem in FIRST))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The one Spark session of a worker: its start is most of these tests' cost."""
    from pyspark.sql import SparkSession

    from repl.audit.session import spark_context

    with spark_context("local[2]") as context:
        yield SparkSession(context)
