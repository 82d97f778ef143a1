"""The audit's Spark session: one JVM for all tests of a process."""

from tests.repl.audit.conftest import spark

__all__ = ["spark"]
