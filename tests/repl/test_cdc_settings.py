"""The tables [[cdc]] of a config file: what is taken, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repl.cdc_settings import CONSUMERS_MAX, EVENTS_TIMEOUT_S, MEMORY_BYTES, RETRIES
from repl.config import load_node_config
from vlsn.errors import BadArgument
from vlsn.limits import MIB

HEAD = """name = "n1"
dir = "."
[members]
n1 = "http://127.0.0.1:7701"
"""


def loaded(tmp_path: Path, tables: str) -> Any:
    path = tmp_path / "node.toml"
    path.write_text(HEAD + tables)
    return load_node_config(path=path, environment={"VLSNLOG_CDC": "not of the environment"}).cdc


def test_a_table_has_its_defaults(tmp_path: Path) -> None:
    assert loaded(tmp_path, "") == ()
    (one,) = loaded(
        tmp_path,
        '[[cdc]]\nname = "orders"\nconsumer = "a.b:C"\nmemory_bytes_max = "96MiB"\nahead_bytes = "8KiB"\nfrom = 7\n',
    )
    assert (one.name, one.consumer, one.run_on, one.from_, one.commit) == ("orders", "a.b:C", "node", 7, "batch")
    assert (one.memory_bytes_max, one.retries_max, one.events_timeout_s) == (96 * MIB, RETRIES, EVENTS_TIMEOUT_S)
    assert one.ahead_bytes == 8192
    (one,) = loaded(tmp_path, '[[cdc]]\nname = "o"\nconsumer = "m:C"\n[cdc.options]\nurl = "x"\nmany = [1, 2]\n')
    assert (one.memory_bytes_max, one.options) == (MEMORY_BYTES, {"url": "x", "many": [1, 2]})


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ("[cdc]\nname = 1", "write each consumer as a table [[cdc]]"),
        ('[[cdc]]\nconsumer = "m:C"', "number 1: has no name"),
        ('[[cdc]]\nname = "o"', "has no consumer"),
        ('[[cdc]]\nname = "o"\nconsumer = "m:C"\nmemory_bytes = 1', "did you mean 'memory_bytes_max'?"),
        ('[[cdc]]\nname = "o o"\nconsumer = "m:C"', "name: 1 to 32"),
        ('[[cdc]]\nname = "o"\nconsumer = "m.C"', "write module:Class"),
        ('[[cdc]]\nname = "o"\nconsumer = "m:C"\nrun_on = "all"', "neither node nor master"),
        ('[[cdc]]\nname = "o"\nconsumer = "m:C"\nfrom = 0', "write a VLSN from 1 on, start or end"),
        ('[[cdc]]\nname = "o"\nconsumer = "m:C"\nfrom = "middle"', "write a VLSN from 1 on, start or end"),
        ('[[cdc]]\nname = "o"\nconsumer = "m:C"\ncommit = "never"', "neither batch nor segment"),
        ('[[cdc]]\nname = "o"\nconsumer = "m:C"\nretries_max = -1', "retries_max"),
        ('[[cdc]]\nname = "o"\nconsumer = "m:C"\nretries_max = "many"', "retries_max"),
        ('[[cdc]]\nname = "o"\nconsumer = "m:C"\nahead_bytes = "1KiB"', "ahead_bytes: 4096 to 4194304"),
        ('[[cdc]]\nname = "o"\nconsumer = "m:C"\nmemory_bytes_max = "1KiB"', "memory_bytes_max: at least"),
        ('[[cdc]]\nname = "o"\nconsumer = "m:C"\nevents_timeout_s = 0.0', "events_timeout_s"),
        ('[[cdc]]\nname = "o"\nconsumer = "m:C"\n' * 2, "two consumers are called 'o'"),
        ("".join(f'[[cdc]]\nname = "o{n}"\nconsumer = "m:C"\n' for n in range(CONSUMERS_MAX + 1)), "has 64 at most"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, tables: str, said: str) -> None:
    with pytest.raises(BadArgument) as raised:
        loaded(tmp_path, tables)
    assert said in str(raised.value)
