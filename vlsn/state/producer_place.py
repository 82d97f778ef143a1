"""The place of a producer, which a client is told."""

from __future__ import annotations

import msgspec


class ProducerPlace(msgspec.Struct, frozen=True):
    """The place of a producer. ``next`` is the sequence that its next submission must have. All other fields describe
    the producer's last submission."""

    next: int = 0
    first: int = 0
    last: int = 0
    term: int = 0
