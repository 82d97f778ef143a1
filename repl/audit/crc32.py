"""CRC-32, the second of the checksums that copies are compared by: ISA-L's where it is installed, else zlib's.

Both give the same numbers.  ISA-L takes the processor's instructions for it: 30 GB/s of blocks of 6 KB, and zlib 4
(``make bench-audit`` shows what that is to an audit).  ``vlsnlog[spark]`` brings it.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:  # a machine that repairs, and never audits
    from zlib import crc32

__all__ = ["crc32"]
