"""A node's directory that fd40b05 has written, before there were levels: it opens, and serves the same bytes.

``tests/golden/node_0.1.0.tar.xz`` holds it as a clean stop leaves it and as a kill does, beside the lines and the
blocks that its node served.  The group has the one member, so that it is served whatever else runs.
"""

from __future__ import annotations

import socket
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.calls import BLOCKS, JSON, OCTETS, Answer, call
from tests.e2e.commands import Command, run

pytestmark = pytest.mark.feature("earlier versions")

GOLDEN = Path(__file__).parents[1] / "golden" / "node_0.1.0.tar.xz"
LAST = 208
ONCE = 204
"""The VLSN of the one submission of its producer."""
WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Earlier:
    """The directory, and what its node served of it."""

    path: Path
    lines: bytes
    blocks: bytes


@pytest.fixture(params=["clean", "killed"])
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> Earlier:
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(tmp_path)
    made = tmp_path / "node_0.1.0"
    return Earlier(made / request.param, (made / "lines").read_bytes(), (made / "blocks").read_bytes())


@contextmanager
def node(path: Path) -> Iterator[str]:
    """Runs its node and gives its URL, once it leads and its log is durable."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    settings = ("--name", "n1", "--group", "golden", "--member", f"n1={url}", "--segment-bytes", str(1 << 20))
    with Command("node", *settings, "--dir", path) as running:
        end = time.monotonic() + WAIT_S
        while not _durable(url):
            assert running.process.poll() is None and time.monotonic() < end, running.ended()
            time.sleep(0.05)
        yield url
        running.process.terminate()
        assert running.ended().status == 0


def _durable(url: str) -> bool:
    with suppress(OSError):
        status = call("GET", f"{url}/v1/status").json()
        return bool(status["state"] == "MASTER" and status["dtvlsn"] > LAST)
    return False


def served(url: str) -> tuple[bytes, bytes]:
    lines = call("GET", f"{url}/v1/entries?limit={LAST}&kinds=all").body
    return lines, call("GET", f"{url}/v1/entries", headers=BLOCKS).body


def appended_once(url: str) -> Answer:
    return call("POST", f"{url}/v1/entries?producer=00000000000000aa&sequence=0&born=0", body=b"once", headers=OCTETS)


def test_a_directory_of_before_levels_is_served_as_it_was_also_at_a_later_level(earlier: Earlier) -> None:
    for level in (1, 2):
        with node(earlier.path) as url:
            assert call("GET", f"{url}/v1/status").json()["founding"] == "cfaed2d1fd1bb8dd-1"
            lines, blocks = served(url)
            assert lines == earlier.lines
            assert blocks.startswith(earlier.blocks)
            again = appended_once(url).ok()
            assert (again["duplicate"], again["first"]) == (True, ONCE), "its producers are known"
            begun = call("POST", f"{url}/v1/transactions", headers=JSON)
            if level == 1:
                assert "vlsnlog group upgrade" in begun.refused(400, "wrong-version")["detail"]
                assert run("group", "upgrade", "--url", url).status == 0
                continue
            path = f"/v1/transactions/{begun.ok()['transaction']}"
            call("POST", f"{url}{path}/entries", body=b"whole", headers=OCTETS).ok()
            first = call("POST", f"{url}{path}/commit").ok()["first"]
            assert call("GET", f"{url}/v1/entries/{first}").body == b"whole"
    found = run("verify", earlier.path, "--json")
    assert found.status == 0, found
