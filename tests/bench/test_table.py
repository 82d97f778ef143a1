"""Medians and ratios: what counts as reached, and what is left out when a peer is missing."""

from __future__ import annotations

from repl.bench.peers.peer import Figure
from repl.bench.peers.table import Key, Row, ratios, rows

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


def _rows(figures: dict[Key, list[Figure]]) -> list[Row]:
    return rows(figures, dict.fromkeys(figures, "a client"))


def test_rows_are_medians_so_one_bad_round_moves_nothing() -> None:
    row = _rows({("etcd", "64 clients"): [Figure(90, 2.0), Figure(100, 1.0), Figure(5, 40.0, errors=2)]})[0]
    assert (row.per_s, row.p50_ms, row.errors) == (90, 2.0, 2)
    assert row.json()["rounds"] == [90, 100, 5]


def test_ratios_compare_with_the_best_of_etcd_and_each_wanted_figure() -> None:
    found = {ratio.what: ratio for ratio in ratios(_rows(OURS | PEERS))}
    assert found["64 writers / PostgreSQL, 64 clients"].reached
    best = found["1024 writers / etcd at best (1024 clients; a client)"]
    assert (best.ratio, best.reached) == (25, True)
    assert found["64 connections, POST / PostgreSQL, 64 clients"].reached
    assert found["64 connections, POST / etcd's JSON gateway"].reached
    latency = found["1 writer, p50 ms / PostgreSQL's"]
    assert latency.reached
    assert latency.json()["wanted"] == "≤ 1.3"
    assert len(found) == 5


def test_ratios_that_are_missed_say_so() -> None:
    slower = OURS | {("vlsnlog", "64 writers"): [Figure(74_999)], ("vlsnlog", "1 writer"): [Figure(900, p50_ms=0.66)]}
    missed = [ratio.what for ratio in ratios(_rows(slower | PEERS)) if not ratio.reached]
    assert missed == ["64 writers / PostgreSQL, 64 clients", "1 writer, p50 ms / PostgreSQL's"]


def test_ratios_without_peers_are_left_out() -> None:
    assert ratios(_rows(OURS)) == []
    only_etcd = {key: value for key, value in PEERS.items() if key[0] == "etcd"}
    assert len(ratios(_rows(OURS | only_etcd))) == 2
