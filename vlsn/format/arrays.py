"""The work on long columns that a client has in common with a node: with NumPy if it is installed, else without.

    works()     by_numpy      a node always has NumPy
                by_python     a client without the extra ``vlsnlog-client[numpy]``

Both modules have the functions of ``Works``, with the same results and the same errors; a test compares them. NumPy is
imported by the first call of ``works``, so a client that reads nothing does not import it. Short columns do not need
``works``: for up to ``SMALL_COLUMN`` values a call of NumPy costs more than a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Final, Protocol

from vlsn.seams import Buffer

SMALL_COLUMN: Final = 64
"""The most values of a short column."""
EXTRA: Final = "pip install 'vlsnlog-client[numpy]'"


class Works(Protocol):
    """The functions of ``by_numpy`` and ``by_python``."""

    def check_offsets(self, buf: Buffer, at: int, count: int, length: int) -> int:
        """Checks that the ``count`` + 1 offsets at ``at`` (i32) rise from 0 to ``length``. Returns the longest
        distance between two of them. Raises ``BadBody``."""
        ...

    def fitting(self, buf: Buffer, columns: Sequence[int], skip: int, count: int, bytes_max: int) -> tuple[int, int]:
        """Returns how many entries after the first ``skip`` have at most ``bytes_max`` bytes in all ``columns``
        (places of offsets) together, from 1 to ``count``. Also returns the number of their bytes."""
        ...

    def whole_transactions(self, kinds: bytes, first_vlsn: int) -> bytes:
        """Returns the ids (u64) of a block with these ``kinds``, if each row is in a complete transaction; else b""."""
        ...

    def check_transactions(self, txns: bytes, kinds: bytes, first_vlsn: int) -> None:
        """Checks the ids ``txns`` (u64) of a block of any rows. Raises ``BadTransaction``."""
        ...

    def ascends(self, numbers: Sequence[int]) -> bool:
        """Returns whether each of ``numbers`` is higher than the one before."""
        ...

    def pack_vlsns(self, vlsns: Sequence[int]) -> bytes:
        """Packs VLSNs in any order as ``VlsnSet.pack`` does."""
        ...


@cache
def works() -> Works:
    """Returns ``by_numpy`` if NumPy is installed, or else ``by_python``."""
    if not numpy_is_there():
        return _by_python()
    from vlsn.format import by_numpy

    return by_numpy


def works_for(count: int) -> Works:
    """Returns the module for a column of ``count`` values. A short one is left to ``by_python``."""
    return works() if count > SMALL_COLUMN else _by_python()


@cache
def _by_python() -> Works:
    from vlsn.format import by_python

    return by_python


def numpy_is_there() -> bool:
    """Returns whether NumPy is installed. Does not import it."""
    try:
        return find_spec("numpy") is not None
    except ValueError:  # ``sys.modules`` has no module, or one that was made by hand
        return False


def need_numpy(what: str) -> None:
    """Raises ``ModuleNotFoundError``, which names the extra, if ``what`` needs NumPy and it is not installed."""
    if not numpy_is_there():
        raise ModuleNotFoundError(f"{what} needs NumPy; install it with: {EXTRA}", name="numpy")
