"""CRC32C (Castagnoli), the only checksum in the layouts.

The hardware computes CRC32C at 6–25 GB/s, and each call costs 0.2 µs. Any buffer can be passed, and ``crc(b, crc(a)) ==
crc(a + b)``. Comparisons between nodes add a second checksum with another polynomial (``zlib.crc32``), which is
computed when it is needed.
"""

from __future__ import annotations

from crc32c import crc32c as crc

__all__ = ["crc"]

assert crc(b"123456789") == 0xE306_9283, "RFC 3720, B.4: this is not CRC32C"
