"""The reading of a trace: which calls count as an append's own completed sync."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import values
from harness.syscalls import Shown, judge, read_trace

LOG = "/data/n1/00000001.vlog"
WRITE = '10.000100 pwritev(9<{log}>, [{{iov_base="bd\\0\\0{value}", iov_len=200}}], 1, 4096) = 200 <0.000050>'
SYNC = "10.000200 fdatasync(9<{log}>) = 0 <0.000300>"
ANSWER = (
    '10.000600 write(7<socket:[5]>, "HTTP/1.1 200 OK\\r\\n\\r\\n{{\\"first\\":3,\\"last\\":3}}", 60) = 60 <0.000010>'
)


def value_of(number: int) -> str:
    return values.value_of(number).decode()


def _node(directory: Path, name: str, *lines: str) -> list[Path]:
    path = directory / f"{name}.trace.1"
    path.write_text("\n".join(line.format(log=LOG, value=value_of(1)) for line in lines) + "\n")
    return [path]


def _judge(directory: Path, master: tuple[str, ...], replica: tuple[str, ...]) -> Shown:
    traces = {
        "n1": read_trace(_node(directory, "n1", *master)),
        "n2": read_trace(_node(directory, "n2", *replica)),
    }
    (shown,) = judge(traces, [(1, 3)], master="n1")
    return shown


def test_a_write_and_a_sync_before_the_answer_are_shown_on_each_node(tmp_path: Path) -> None:
    assert _judge(tmp_path, (WRITE, SYNC, ANSWER), (WRITE, SYNC)).synced == ("n1", "n2")


@pytest.mark.parametrize(
    "replica",
    [
        (WRITE,),
        (SYNC,),
        (WRITE, SYNC.replace("<0.000300>", "<0.000500>")),  # completed after the answer began
        (WRITE, SYNC.replace("= 0", "= -1 EIO (Input/output error)")),
        (WRITE, SYNC.replace("{log}", "/data/n1/00000002.vlog")),
        (WRITE, SYNC.replace("10.000200", "10.000120")),  # began before the write was done
        (WRITE.replace("{value}", value_of(2)), SYNC),
        (WRITE.replace("= 200", "= -1 ENOSPC (No space left)"), SYNC),
    ],
)
def test_anything_less_is_not_shown(tmp_path: Path, replica: tuple[str, ...]) -> None:
    assert _judge(tmp_path, (WRITE, SYNC, ANSWER), replica).synced == ("n1",)


def test_without_an_answer_in_the_trace_nothing_is_shown(tmp_path: Path) -> None:
    assert _judge(tmp_path, (WRITE, SYNC), (WRITE, SYNC)).synced == ()


def test_one_sync_counts_for_one_append_only(tmp_path: Path) -> None:
    second = WRITE.replace("{value}", value_of(2)).replace("10.000100", "10.000110")
    later = ANSWER.replace("10.000600", "10.000700").replace('first\\":3', 'first\\":4')
    traces = {"n1": read_trace(_node(tmp_path, "n1", WRITE, second, SYNC, ANSWER, later))}
    assert [each.synced for each in judge(traces, [(1, 3), (2, 4)], master="n1")] == [("n1",), ()]


def _shared(directory: Path, *lines: str) -> list[Shown]:
    answer = ANSWER.replace("10.000600", "10.000601").replace("3,", "4,").replace(":3}}", ":4}}")
    calls = read_trace(_node(directory, "n1", *lines, ANSWER, answer))
    return judge({"n1": calls}, [(1, 3), (2, 4)], master="n1", shared=True)


def test_under_load_one_sync_counts_for_all_that_was_written_before_it_began(tmp_path: Path) -> None:
    both = WRITE.replace("{value}", value_of(1) + value_of(2))
    assert [each.synced for each in _shared(tmp_path, both, SYNC)] == [("n1",), ("n1",)]
    second = WRITE.replace("{value}", value_of(2)).replace("10.000100", "10.000250")
    assert [each.synced for each in _shared(tmp_path, WRITE, SYNC, second)] == [("n1",), ()]  # written while it ran


def test_under_load_the_first_of_two_syncs_counts_and_one_of_another_segment_does_not(tmp_path: Path) -> None:
    both = WRITE.replace("{value}", value_of(1) + value_of(2))
    late = SYNC.replace("10.000200", "10.000590")
    assert [each.synced for each in _shared(tmp_path, both, SYNC, late)] == [("n1",), ("n1",)]
    other = SYNC.replace("{log}", "/data/n1/00000002.vlog")
    assert [each.synced for each in _shared(tmp_path, both, other)] == [(), ()]
