"""CRC-32, the second of the checksums that compare copies. The library ISA-L computes the CRC-32 if it is installed,
otherwise zlib.

ISA-L and zlib return the same numbers. ISA-L uses the processor's own instructions: it checks blocks of 6 KB at 30
GB/s, zlib at 4 GB/s (``make bench-audit`` shows the effect on an audit). ``vlsnlog[spark]`` installs ISA-L.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:  # a machine that only repairs, and never audits, may be without ISA-L
    from zlib import crc32

__all__ = ["crc32"]
