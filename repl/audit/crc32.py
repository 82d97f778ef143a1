"""CRC-32, the second of the checksums that compare copies: computed by ISA-L where that is installed, else by zlib.

Both libraries give the same numbers.  ISA-L uses the processor's own instructions: it checks blocks of 6 KB at
30 GB/s, zlib at 4 GB/s (``make bench-audit`` shows the effect on an audit).  ``vlsnlog[spark]`` installs ISA-L.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:  # ISA-L is missing on a machine that only repairs and never audits
    from zlib import crc32

__all__ = ["crc32"]
