"""Medians and ratios beside the peers: aims that are reached, and rows that are left out when a peer is missing."""

from __future__ import annotations

from tests.bench.peers.peer import Figure
from tests.bench.peers.works import Key, _row, ratios
from tests.bench.report import missed

OURS: dict[Key, list[Figure]] = {
    ("vlsnlog", "1 writer"): [Figure(1_500, p50_ms=0.6)],
    ("vlsnlog", "64 writers"): [Figure(80_000)],
    ("vlsnlog", "1024 writers"): [Figure(300_000)],
    ("vlsnlog", "64 connections, POST"): [Figure(16_000)],
}
PEERS: dict[Key, list[Figure]] = {
    ("PostgreSQL", "1 client"): [Figure(1_800, p50_ms=0.5)],
    ("PostgreSQL", "64 clients"): [Figure(15_000)],
    ("etcd", "64 clients"): [Figure(7_000)],
    ("etcd", "1024 clients"): [Figure(12_000)],
    ("etcd", "64 connections, JSON"): [Figure(5_000)],
}


def test_rows_are_medians_so_one_bad_round_moves_nothing() -> None:
    row = _row(("etcd", "64 clients"), [Figure(90, 2.0), Figure(100, 1.0), Figure(5, 40.0, errors=2)], "a client")
    assert (row["appends_per_s"], row["p50_ms"], row["errors"], row["least"], row["most"]) == (90, 2.0, 2, 5, 100)


def test_ratios_compare_with_the_best_of_etcd_and_each_wanted_figure() -> None:
    found = {each[""]: each["ratio"] for each in ratios(OURS | PEERS)}
    assert found["1024 writers / etcd, at best"].value == 25
    assert found["1 writer / PostgreSQL, 1 client"].aim == "≤ 1.3"
    assert len(found) == 5 and all(each.reached for each in found.values())


def test_ratios_that_are_missed_say_so() -> None:
    slower = OURS | {("vlsnlog", "64 writers"): [Figure(74_900)], ("vlsnlog", "1 writer"): [Figure(900, p50_ms=0.66)]}
    said = missed(("peers", ratios(slower | PEERS)))
    assert [each.rpartition("wanted ")[2] for each in said] == ["≥ 5", "≤ 1.3"]


def test_ratios_without_peers_are_left_out() -> None:
    assert ratios(OURS) == []
    assert len(ratios(OURS | {key: value for key, value in PEERS.items() if key[0] == "etcd"})) == 2
