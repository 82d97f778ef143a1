"""A real replica that misses cleaned entries: it restores its log from a member, and follows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from repl.cli.main import main
from tests.e2e.calls import call
from tests.e2e.group import NAMES, Group
from tests.repl.audit.jobs import audited
from vlsn.limits import MIB

pytestmark = pytest.mark.feature("restore")

VALUE = b"." * 100_000


@pytest.fixture
def short(tmp_path: Path) -> Iterator[Group]:
    """Segments of 1 MiB, of which some eight are kept, whatever a replica still needs."""
    made = Group(
        tmp_path / "group",
        segment_bytes=MIB,
        retention_bytes=8 * MIB,
        hold_bytes_max=2 * MIB,
        checkpoint_bytes=MIB,
        cleaning_period_s=0.2,
        ring_bytes_max=MIB,
    )
    try:
        made.start()
        yield made
    finally:
        made.end()


def test_a_trimmed_replica_is_restored_killed_on_the_way_and_follows(
    short: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = short
    group.lead("n1")
    group.append(b"early")
    group.settle()
    had = int(group.status("n3")["range"]["last"])
    group.stop("n3")
    vlsns = group.append(*[VALUE] * 150)
    for name in ("n1", "n2"):
        group.until(lambda name=name: group.status(name)["range"]["first"] > had + 1, f"{name} has cleaned")  # type: ignore[misc]
    group.launch("n3")
    marker = group.path("n3") / "restore.marker"
    group.until(lambda: marker.exists() or group.status("n3").get("state") == "REPLICA", "n3 restores")
    group.kill("n3")
    group.launch("n3")
    group.settle()
    assert not marker.exists()
    told = group.status("n3")
    begins = told["range"]["first"]
    assert had + 1 < begins <= min(group.status(name)["range"]["first"] for name in ("n1", "n2"))
    kept = [vlsn for vlsn in vlsns if vlsn >= begins]
    assert len(kept) > 50
    for vlsn in (kept[0], kept[-1]):
        assert call("GET", f"{group.urls['n3']}/v1/entries/{vlsn}").body == VALUE
    group.append(b"late")
    group.settle()
    group.lead("n1")
    assert main(["restore", "--url", group.urls["n1"]]) == 2  # a master gives up nothing
    assert main(["restore", "--url", group.urls["n2"]]) == 0
    group.until(lambda: len(group.status("n2").get("restore", {}).get("history", [])) == 1, "n2 has restored")
    group.settle()
    earlier = len(group.status("n3")["restore"]["history"])
    both = f"{group.urls['n2']},{group.urls['n3']}"
    monkeypatch.setenv("VLSNLOG_URL", both)
    assert main(["restore"]) == 2  # whole copies are given up by name
    assert main(["restore", "--url", both]) == 0
    done = group.status("n2")["restore"]["history"]
    assert len(done) == 2  # n2 had its log again before n3 gave up its own
    group.until(lambda: len(group.status("n3").get("restore", {}).get("history", [])) > earlier, "n3 has restored")
    assert group.status("n3")["restore"]["history"][-1]["time"] > done[-1]["time"]
    group.settle()
    assert not group.faults()
    group.stop(*NAMES)
    report = audited(*map(group.path, NAMES))
    assert (report.equal, report.findings) == (True, [])
    for name in NAMES:
        assert main(["verify", str(group.path(name))]) == 0
