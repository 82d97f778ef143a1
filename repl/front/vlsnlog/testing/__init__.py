"""A real group for the tests of a program: processes, real disks, and faults on order.

    from vlsnlog.testing import Group

    with Group(nodes=3) as group, group.connect_sync() as log:
        vlsn = log.append(b"value")
        group.kill(group.master())
        log.append(b"by the next master")

With pytest, the fixtures ``vlsnlog_node`` (one node) and ``vlsnlog_group`` (three) are there once this distribution is
installed. A group is on 127.0.0.1, in a temporary directory, and ends with its context. The package is in the server's
distribution, ``vlsnlog``; ``vlsnlog-client`` does not have it.
"""

from __future__ import annotations

from vlsnlog.testing.group import Group as Group
from vlsnlog.testing.group import NotInTime as NotInTime

__all__ = ["Group", "NotInTime"]
