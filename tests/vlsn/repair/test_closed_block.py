"""Blocks of a log that does not open, by name."""

from __future__ import annotations

import pytest

from tests.vlsn.logs import DIRECTORY, Machine, Opened
from vlsn.errors import NotFound
from vlsn.format.block import decode_header
from vlsn.repair.closed_block import block_of_closed


def test_a_block_is_found_by_its_name_in_the_segments_that_are_left() -> None:
    machine = Machine()
    opened = Opened(machine)
    for number in range(40):
        opened.append(b"%d" % number)
        if number % 10 == 9:
            opened.log.cycle.rotate("request")
    machine.kill()
    names = [path for path in machine.disk.files(DIRECTORY) if path.endswith(".vlog")]
    assert len(names) > 3
    for first in (2, 15, 40):
        block = block_of_closed(machine.disk, machine.stores, DIRECTORY, 1, first)
        assert decode_header(block).name == (1, first)
    for name in names:
        machine.disk.flip_bit(name, 30, 1)  # of its header: no segment is known to be of the log
    with pytest.raises(NotFound):
        block_of_closed(machine.disk, machine.stores, DIRECTORY, 1, 15)
