"""Reads and checks the options of the consumers that are part of vlsnlog. An error says how to correct the options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from repl import cdc_settings
from repl.cdc.consumer import CdcContext
from repl.config import whole_size
from vlsn.errors import BadArgument

T = TypeVar("T", bound=cdc_settings.Checked)


def options_of(kind: type[T], given: Mapping[str, Any]) -> T:
    """Decodes the table ``options`` as a ``kind``. Raises ``BadArgument``."""
    return cdc_settings.options_of(kind, given, whole_size)


def check_runs_on(context: CdcContext, where: str, why: str) -> None:
    """Raises ``BadArgument`` if the settings run the consumer on another node than ``where`` requires."""
    if context.run_on != where:
        raise BadArgument(f'run_on: this consumer needs run_on = "{where}": {why}')


def check_begins(context: CdcContext, found: str) -> None:
    """Raises ``BadArgument`` if the consumer has committed before. A missing position then means that the position was
    lost. The consumer must not begin anew without a person's order. ``found`` describes the place where the position is
    missing."""
    if not (context.begins or context.moved):
        raise BadArgument(
            f"{found}, but this consumer has come to VLSN {context.next}: was the position lost? Set where it "
            f"continues: `vlsnlog cdc move {context.name} --to {context.next}` (or start, end)"
        )


__all__ = ["check_begins", "check_runs_on", "options_of"]
