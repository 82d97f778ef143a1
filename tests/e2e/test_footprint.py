"""The footprint of a node: no Spark, no Arrow, and memory that does not grow with its log."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from repl.client.page import decode_blocks
from tests.e2e.calls import BATCH, BLOCKS, call, raw_socket
from tests.e2e.group import NAMES, Group
from vlsn.format import batch

MEMORY_BYTES_MAX = 300 * 10**6
BODIES = 300
BODY = batch.encode([b"%-1000d" % number for number in range(1000)])


def test_a_node_imports_neither_spark_nor_arrow(group: Group) -> None:
    program = (
        "import json, sys, repl.cli.main, repl.cli.node, repl.node.process; json.dump(sorted(sys.modules), sys.stdout)"
    )
    loaded = json.loads(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)
    assert "repl.node.node" in loaded
    assert {module.partition(".")[0] for module in loaded} & {"pyspark", "pyarrow", "py4j", "pandas"} == set()
    for name in NAMES:
        mapped = Path(f"/proc/{group.pid(name)}/maps").read_text()
        assert "lmdb" in mapped
        assert "arrow" not in mapped


def peak_bytes(pid: int) -> int:
    """Returns the most memory that the process ever had resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(kib) * 1024


def test_memory_stays_in_bounds_while_the_log_grows_and_is_read_whole(group: Group) -> None:
    last = group.settle()
    with ExitStack() as idle, ThreadPoolExecutor(4) as writers:
        for target in (b"/v1/tail?from=1", b"/v1/entries?from=1&limit=10000", b"/v1/segments/1") * 20:
            for url in group.urls.values():  # readers that ask and then read nothing
                idle.enter_context(raw_socket(url)).sendall(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % target)
        answers = writers.map(
            lambda _: call("POST", f"{group.master}/v1/entries", body=BODY, headers=BATCH).ok(), range(BODIES)
        )
        assert sum(answer["last"] - answer["first"] + 1 for answer in answers) == BODIES * 1000
        end = group.settle()
    assert end == last + BODIES * 1000
    with ThreadPoolExecutor(2) as readers:
        counts = list(readers.map(scanned, group.urls.values(), (False, True), (end, end)))
    assert len(set(counts)) == 1
    assert counts[0] >= BODIES * 1000
    peaks = {name: peak_bytes(group.pid(name)) for name in NAMES}
    assert max(peaks.values()) < MEMORY_BYTES_MAX, peaks


def scanned(url: str, by_blocks: bool, end: int) -> int:
    """Counts the DATA entries that a node gives from the first to ``end``: as lines, or out of whole blocks."""
    at, count = 1, 0
    while at <= end:
        page = call("GET", f"{url}/v1/entries?from={at}&limit=10000", headers=BLOCKS if by_blocks else None)
        assert page.status == 200
        if by_blocks:
            count += len(decode_blocks(memoryview(page.body), from_vlsn=at, kinds=frozenset({0}))[0])
        else:
            count += page.body.count(b"\n")
        at = int(page.headers["vlsnlog-next"])
    return count
