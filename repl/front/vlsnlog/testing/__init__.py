"""A real group for the tests of a program: on real disks or in memory, with faults on order.

    from vlsnlog.testing import Group

    with Group(nodes=3) as group, group.connect_sync() as log:
        vlsn = log.append(b"value")
        group.kill(group.master())
        log.append(b"by the next master")

``Group(nodes=3, disk="memory")`` is the same group as threads of this process, within a fraction of a second.
With pytest, the fixtures ``vlsnlog_node`` (one node) and ``vlsnlog_group`` (three) are there once this distribution is
installed; the setting ``vlsnlog_disk = memory`` makes their groups in memory. A group is on this machine's loopback, in
a temporary directory, and ends with its context. The package is in the server's distribution, ``vlsnlog``;
``vlsnlog-client`` does not have it.
"""

from __future__ import annotations

from vlsnlog.testing.group import Group as Group
from vlsnlog.testing.group import NotInTime as NotInTime

__all__ = ["Group", "NotInTime"]
