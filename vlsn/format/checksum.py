"""CRC32C (Castagnoli), the one checksum of every layout.

In hardware: 6–25 GB/s, 0.2 µs a call. Any buffer will do; ``crc(b, crc(a)) == crc(a + b)``. Comparisons between nodes
add a second sum of another polynomial (``zlib.crc32``), made where it is needed.
"""

from __future__ import annotations

from crc32c import crc32c as crc

__all__ = ["crc"]

assert crc(b"123456789") == 0xE306_9283, "RFC 3720, B.4: this is not CRC32C"
