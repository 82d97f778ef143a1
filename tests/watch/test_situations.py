"""Real groups in each situation, their scrapes, and the alerts that fire: those of the situation, and no others."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from repl import connect_sync
from tests.e2e.calls import JSON, NDJSON, call
from tests.e2e.commands import run
from tests.e2e.group import NAMES, UNTROUBLED_S, Group
from tests.e2e.test_full_disk import fill, small_disk
from tests.watch.load import Load, Worker, until_scraped
from tests.watch.rules import alerts, expressions, metrics_in, panels, promtool_path
from tests.watch.scrapes import Scraper, changed, check_fired, key_of
from vlsn.limits import MIB

pytestmark = pytest.mark.real
__all__ = ["small_disk"]

CONSUMERS = """
from repl.cdc import CdcConsumer

class Reads(CdcConsumer):
    def on_events(self, events):
        for each in events:
            pass
        return True

class Fails(CdcConsumer):
    def on_events(self, events):
        raise ValueError("no such column")
"""
ONLY_WITH_TLS = {"vlsnlog_tls_not_after_seconds"}
LINE = b'{"value":"a","key":"order-1"}'


@pytest.fixture(autouse=True)
def promtool_is_there(request: pytest.FixtureRequest) -> None:
    """Skips a test before its group is founded, where nothing could evaluate the rules."""
    if request.node.get_closest_marker("feature") is None:
        promtool_path()


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keeps the settings of the caller's environment from nodes, and lets nodes find the consumers."""
    for name in [name for name in os.environ if name.startswith("VLSNLOG_")]:
        monkeypatch.delenv(name)
    (tmp_path / "consumers_of_a_watch.py").write_text(CONSUMERS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))


@contextmanager
def scraped(directory: Path, *tables: str, **settings: str | int | float) -> Iterator[tuple[Group, Scraper]]:
    """Founds a group of three and scrapes it. ``tables`` are added to each node's settings."""
    group = Group(directory / "group", **settings)
    for name in NAMES:
        with group.config(name).open("a") as file:
            file.write("\n".join(["", *tables, ""]))
    try:
        with Scraper(group.urls) as scraper:
            group.start()
            scraper.rest(2)
            yield group, scraper
    finally:
        group.end()


def cdc(name: str, consumer: str, *more: str) -> str:
    lines = ["[[cdc]]", f'name = "{name}"', f'consumer = "consumers_of_a_watch:{consumer}"', *more]
    return "\n".join([*lines, 'run_on = "master"'])


def destination(group: Group, **settings: object) -> str:
    """Makes the destination ``jobs``. Returns its path at the master."""
    path = f"{group.master}/v1/destinations/jobs"
    assert call("PUT", path, headers=JSON, body=json.dumps({"prefix": "order-"} | settings).encode()).status == 201
    return path


def take(path: str) -> list[int]:
    return [each["vlsn"] for each in call("GET", f"{path}/messages?wait=5&max=100").lines()]


def test_a_healthy_group_raises_no_alert(tmp_path: Path) -> None:
    """It is founded, works under load, is restarted node by node, and hands over."""
    with scraped(tmp_path, cdc("lines", "Reads")) as (group, scraper):
        destination(group, **{"from": "end"}, ack_timeout_s=3)
        with connect_sync(",".join(group.urls.values())) as log, Load(group, writers=2) as load, Worker(group):
            consumer = log.consumer("billing", from_vlsn=1)

            def commit() -> None:
                """Reads and commits all entries."""
                end = group.status(group.leader)["dtvlsn"]
                for entry in consumer:
                    if entry.vlsn >= end - 1:
                        break
                consumer.commit()

            commit()
            group.lead("n1")
            for name in ("n3", "n2"):
                group.stop(name)
                group.launch(name)
                group.until(lambda name=name: group.status(name).get("state") == "REPLICA", f"{name} follows")  # type: ignore[misc]
                scraper.rest(2)
            group.until(lambda: handed_over(group, "n2"), "n2 leads")
            group.stop("n1")
            group.launch("n1")
            group.until(lambda: group.status("n1").get("state") == "REPLICA", "n1 follows")
            for _ in range(4):
                commit()
                scraper.rest(2)
            assert load.done > 200
    check_fired(tmp_path, scraper.series(), set())


def handed_over(group: Group, name: str) -> bool:
    time.sleep(0.5)
    call("POST", f"{group.master}/v1/admin/transfer?to={name}")
    return bool(group.status(name).get("state") == "MASTER")


def test_a_killed_master(tmp_path: Path) -> None:
    with scraped(tmp_path) as (group, scraper), Load(group):
        scraper.rest(5)
        group.kill(group.leader)
        assert group.leader
        scraper.rest(10)
    check_fired(tmp_path, scraper.series(), {"VlsnlogNodeDown", "VlsnlogMemberSilent"})


def test_no_majority(tmp_path: Path) -> None:
    with scraped(tmp_path) as (group, scraper), Load(group):
        scraper.rest(5)
        group.kill("n2", "n3")
        until_scraped(scraper, group, 'vlsnlog_role{instance="n1",job="orders",state="UNKNOWN"}', bool)
        scraper.rest(12)
    wanted = {"VlsnlogNodeDown", "VlsnlogMemberSilent", "VlsnlogNoMaster", "VlsnlogAppendsRefused"}
    check_fired(tmp_path, scraper.series(), wanted)


def test_a_silent_replica(tmp_path: Path) -> None:
    with scraped(tmp_path) as (group, scraper), Load(group):
        scraper.rest(3)
        silent = next(name for name in NAMES if name != group.leader)
        group.send(silent, signal.SIGSTOP)
        until_scraped(scraper, group, f'member="{silent}"', bool)
        scraper.rest(8)
    check_fired(tmp_path, scraper.series(), {"VlsnlogNodeDown", "VlsnlogMemberSilent"})


def test_a_restore(tmp_path: Path) -> None:
    with scraped(tmp_path) as (group, scraper):
        value = b"." * (MIB - 1024)
        group.append(*[value] * 200)
        group.settle()
        name = next(name for name in NAMES if name != group.leader)
        assert call("POST", f"{group.urls[name]}/v1/admin/restore").status < 300
        restoring = key_of("vlsnlog_role", {"instance": name, "job": "orders", "state": "RESTORING"})

        def caught() -> bool:
            scraper.tick()
            return scraper.series()[restoring][-1] == 1

        group.until(caught, f"{name} restores")
        series = scraper.series()
    check_fired(tmp_path, series, {"VlsnlogRestoreLong"})


def test_damage_that_stays_and_damage_that_is_mended(tmp_path: Path) -> None:
    with scraped(tmp_path, segment_bytes=4 * MIB, scrub_period_s=1.0) as (group, scraper):
        group.lead("n1")
        vlsns = group.append(*[b"%d" % number * 1000 for number in range(5)])
        group.settle()
        call("POST", f"{group.urls['n3']}/v1/admin/rotate").ok()
        group.append(b"behind it")
        group.settle()
        group.stop(*NAMES)
        flip(group, "n3", vlsns[2])
        group.launch("n3")
        group.until(lambda: call_status(f"{group.urls['n3']}/v1/entries/{vlsns[2]}") == 500, "n3 meets the damage")
        until_scraped(scraper, group, "vlsnlog_damaged_segments", bool)
        stays = scraper.series()
        group.start("n1", "n2")
        until_scraped(scraper, group, "vlsnlog_mended_blocks_total", bool)
        group.until(lambda: not group.status("n3")["damage"], "n3 is whole")
        scraper.rest(8)
        mended = scraper.series()
    wanted = {"VlsnlogDamage", "VlsnlogNoMaster", "VlsnlogNodeDown", "VlsnlogMemberSilent"}
    check_fired(tmp_path, stays, wanted)
    check_fired(tmp_path, mended, {"VlsnlogDamageMended"})


def call_status(url: str) -> int:
    try:
        return call("GET", url).status
    except OSError:
        return 0


def flip(group: Group, name: str, vlsn: int) -> None:
    """Flips a bit in the block of ``vlsn`` on a stopped node."""
    frame = json.loads(run("dump", group.path(name), "--json", "--from", str(vlsn), "--to", str(vlsn)).out)
    with (group.path(name) / frame["file"]).open("r+b", buffering=0) as file:
        file.seek(frame["offset"] + 200)
        (byte,) = file.read(1)
        file.seek(frame["offset"] + 200)
        file.write(bytes([byte ^ 0x80]))


def test_a_full_disk(tmp_path: Path, small_disk: Path) -> None:
    settings = {"segment_bytes": MIB, "election_timeout_s": UNTROUBLED_S}
    with scraped(small_disk, **settings) as (group, scraper), Load(group, value_bytes=100_000):
        scraper.rest(2)
        fill(small_disk, 8 * MIB)
        until_scraped(scraper, group, "vlsnlog_no_space", bool)
        scraper.rest(15)
    # The replicas' disk is the same one, so a replica may miss what the master had room for.
    wanted = {"VlsnlogDiskFull", "VlsnlogAppendsRefused"}
    check_fired(tmp_path, scraper.series(), wanted, perhaps=frozenset({"VlsnlogReplicaLags"}))


def test_a_full_destination(tmp_path: Path) -> None:
    with scraped(tmp_path) as (group, scraper):
        path = destination(group, max_messages=2, full_policy="fail")
        group.until(lambda: call("GET", path).ok()["depth"]["counted"], "its depth is counted")
        with Load(group, writers=1):
            until_scraped(scraper, group, "vlsnlog_destination_full", bool)
            scraper.rest(15)
    check_fired(tmp_path, scraper.series(), {"VlsnlogDestinationFull", "VlsnlogDestinationOld"})


def test_dead_letters(tmp_path: Path) -> None:
    with scraped(tmp_path) as (group, scraper):
        path = destination(group, attempts_max=1)
        scraper.rest(3)
        call("POST", f"{group.master}/v1/entries", headers=NDJSON, body=LINE).ok()
        [vlsn] = take(path)
        refused = json.dumps({"vlsns": [vlsn], "reason": "no stock"}).encode()
        assert call("POST", f"{path}/nack", headers=JSON, body=refused).status == 200
        until_scraped(scraper, group, "vlsnlog_destination_buried_total", bool)
        scraper.rest(15)
    check_fired(tmp_path, scraper.series(), {"VlsnlogDeadLetters"})


def test_a_parked_consumer(tmp_path: Path) -> None:
    with scraped(tmp_path, cdc("orders", "Fails", "retries_max = 0")) as (group, scraper):
        group.append(b"x")
        until_scraped(scraper, group, 'state="parked"', bool)
        scraper.rest(8)
    check_fired(tmp_path, scraper.series(), {"VlsnlogCdcParked"})


def test_a_consumer_that_fails_and_is_tried_again(tmp_path: Path) -> None:
    with scraped(tmp_path, cdc("orders", "Fails", "retries_max = 1000")) as (group, scraper):
        group.append(b"x")
        until_scraped(scraper, group, "vlsnlog_cdc_failures", lambda value: value >= 2)
        scraper.rest(8)
    # The consumer also lags once it is behind for ten minutes.
    check_fired(tmp_path, scraper.series(), {"VlsnlogCdcFailing"}, perhaps=frozenset({"VlsnlogCdcLags"}))


def test_a_reader_that_stops(tmp_path: Path) -> None:
    with scraped(tmp_path) as (group, scraper), connect_sync(",".join(group.urls.values())) as log:
        consumer = log.consumer("billing", from_vlsn=1)
        group.append(b"a", b"b")
        next(iter(consumer))
        consumer.commit()
        scraper.rest(15)
    check_fired(tmp_path, scraper.series(), {"VlsnlogConsumerLags"})


def test_strangers(tmp_path: Path) -> None:
    with scraped(tmp_path, anonymous="append") as (group, scraper):
        wrong = {"Authorization": "Bearer vlt_k3f9a1c8_" + "A" * 43}
        for _ in range(10):
            for _ in range(10):
                assert call("GET", f"{group.urls['n2']}/v1/status", headers=wrong).status == 401
            scraper.rest(1)
    check_fired(tmp_path, scraper.series(), {"VlsnlogUnauthorised"})


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Scraper:
    """Scrapes a healthy group that has a destination, a named consumer and a CDC consumer."""
    directory = tmp_path_factory.mktemp("calm")
    (directory / "consumers_of_a_watch.py").write_text(CONSUMERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")]))
        with scraped(directory, cdc("lines", "Reads")) as (group, scraper):
            destination(group, **{"from": "end"})
            group.append(b"x")
            with connect_sync(",".join(group.urls.values())) as log:
                consumer = log.consumer("billing", from_vlsn=1)
                next(iter(consumer))
                consumer.commit()
            until_scraped(scraper, group, "vlsnlog_cdc_lag_seconds", lambda value: value == 0)
            group.settle()
            scraper.rest(3)
            return scraper


@pytest.mark.feature("watch")
def test_each_metric_of_the_rules_and_of_the_board_is_scraped(calm: Scraper) -> None:
    read = [*expressions(), *(target["expr"] for panel in panels() for target in panel["targets"])]
    assert set().union(*map(metrics_in, read)) - calm.names - {"up"} == ONLY_WITH_TLS


HOUR_S = 3_600
DAY_S = 24 * HOUR_S
STEP_S = 60
AT_N2 = 'instance="n2",job="orders"'
AT_N3 = 'instance="n3",job="orders"'
COUNT_UP = [0.0, *(float(number) for number in range(60))]


def slow_syncs() -> dict[str, list[float]]:
    """Returns the buckets of a node whose syncs all take between 1 s and 2.5 s, ten a minute."""
    bounds = {"0.5": 0.0, "1.0": 0.0, "2.5": 10.0, "5.0": 10.0, "+Inf": 10.0}
    name = "vlsnlog_fdatasync_seconds_bucket"
    return {
        f'{name}{{{AT_N2},le="{bound}"}}': [each * minute for minute in range(60)] for bound, each in bounds.items()
    }


@pytest.mark.parametrize(
    ("alert", "changes"),
    [
        ("VlsnlogQueueFull", {f'vlsnlog_refused_calls_total{{{AT_N2},type="queue-full"': COUNT_UP}),
        (
            "VlsnlogNodeOutside",
            {f'vlsnlog_role{{{AT_N3},state="UNKNOWN"': [1], f'vlsnlog_role{{{AT_N3},state="REPLICA"': [0]},
        ),
        (
            "VlsnlogHalted",
            {f'vlsnlog_role{{{AT_N3},state="HALTED"': [1], f'vlsnlog_role{{{AT_N3},state="REPLICA"': [0]},
        ),
        ("VlsnlogMasterChanges", {f"vlsnlog_master_changes_total{{{AT_N2}": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}),
        ("VlsnlogRestarts", {f"process_start_time_seconds{{{AT_N2}": [0, 0, 60, 60, 120, 120, 180, 180]}),
        ("VlsnlogClockOff", {f"vlsnlog_time_seconds{{{AT_N2}": [STEP_S * minute + 90.0 for minute in range(60)]}),
        ("VlsnlogVersionsDiffer", {f'vlsnlog_build_info{{{AT_N2},python="3.11.2",version="0.2.0"': [1]}),
        ("VlsnlogLevelLow", {"vlsnlog_level{": [4]}),
        ("VlsnlogReplicaLags", {'vlsnlog_feeder_lag_seconds{instance="n1",job="orders",replica="n3"': [300]}),
        ("VlsnlogDiskNearlyFull", {f"vlsnlog_free_bytes{{{AT_N2}": [900e6]}),
        ("VlsnlogDiskNearlyFull", {f"vlsnlog_free_bytes{{{AT_N2}": [50e9 - 200e6 * minute for minute in range(60)]}),
        ("VlsnlogBackgroundFailing", {f'vlsnlog_background_failing{{{AT_N2},work="sidecar"': [1]}),
        ("VlsnlogWriteErrors", {f"vlsnlog_write_errors_total{{{AT_N2}": [0, 0, 1]}),
        ("VlsnlogSyncSlow", slow_syncs()),
        ("VlsnlogHoldDropped", {f"vlsnlog_holds_dropped_total{{{AT_N2}": [0, 0, 1]}),
        ("VlsnlogCdcLags", {'vlsnlog_cdc_lag_seconds{consumer="lines"': [1000]}),
        ("VlsnlogCertificateEnds", {f"vlsnlog_tls_not_after_seconds{{{AT_N2}}}": [12 * DAY_S]}),
        ("VlsnlogKeyExchange", {f"vlsnlog_keys_accepted{{{AT_N2}": [2]}),
        ("VlsnlogInsecure", {f"vlsnlog_insecure{{{AT_N2}": [1]}),
    ],
)
def test_a_value_of_a_real_scrape_is_changed(
    alert: str, changes: dict[str, list[float]], calm: Scraper, tmp_path: Path
) -> None:
    """Conditions that take days, other releases or a broken disk: the scrapes of a healthy group with another value.
    The last values are held for as long as the alert waits."""
    [rule] = [rule for rule in alerts() if rule["alert"] == alert]
    hold_s = 1.2 * DAY_S if rule["for"].endswith("d") else 2.5 * HOUR_S
    check_fired(tmp_path, changed(calm.series(), changes, STEP_S), {alert}, hold_s=hold_s, period_s=STEP_S)


def test_a_calm_day_raises_no_alert(calm: Scraper, tmp_path: Path) -> None:
    series = changed(calm.series(), {"up{": [1]}, STEP_S)
    check_fired(tmp_path, series, set(), hold_s=1.2 * DAY_S, period_s=STEP_S)
