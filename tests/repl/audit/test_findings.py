"""The report: its JSON and its exit status."""

from __future__ import annotations

import json

import pytest

from repl.audit.findings import Finding, shown
from repl.audit.report import AuditReport, SourceReport

FINDING = Finding(rule="frame-crc", source="d/n1", file="00000001.vlog", offset=4096, vlsn=7)


def report(*, equal: bool, compared_to: int, findings: list[Finding]) -> AuditReport:
    source = SourceReport(
        source="d/n1",
        node="n1",
        first=1,
        last=9,
        dtvlsn=8,
        bytes=4096,
        blocks=3,
        entries=9,
        live=False,
        torn_tail=False,
    )
    return AuditReport(
        equal=equal,
        compared_from=min(1, compared_to),
        compared_to=compared_to,
        sources=[source],
        findings=findings,
        ranges_differing=0,
        tasks=4,
        seconds=2.0,
    )


@pytest.mark.parametrize(
    ("equal", "compared_to", "findings", "status"),
    [
        (True, 8, [], 0),
        (True, 8, [FINDING], 1),
        (False, 8, [], 1),
        (False, 8, [FINDING], 1),
        (False, 0, [], 2),
        (False, 0, [FINDING], 1),
    ],
)
def test_exit_code(equal: bool, compared_to: int, findings: list[Finding], status: int) -> None:
    assert report(equal=equal, compared_to=compared_to, findings=findings).exit_code == status


def test_json_has_the_fields_of_the_contract() -> None:
    answer = json.loads(report(equal=False, compared_to=8, findings=[FINDING]).to_json())
    assert {"equal", "compared_from", "compared_to", "sources", "findings", "tasks"} <= answer.keys()
    assert {"source", "node", "first", "last", "dtvlsn", "bytes"} <= answer["sources"][0].keys()
    assert answer["findings"] == [
        {"rule": "frame-crc", "source": "d/n1", "file": "00000001.vlog", "offset": 4096, "vlsn": 7}
    ]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"paid 10", {"value": "paid 10"}),
        (b"", {"value": ""}),
        (None, {"value": None}),
        (b"\xff\x00", {"value_b64": "/wA="}),
        (b"x" * 201, {"value": "x" * 200, "value_bytes": 201}),
        (b"x" * 199 + "é".encode(), {"value": "x" * 199, "value_bytes": 201}),
        (b"\xff" + b"x" * 300, {"value_b64": "/3h4" + "eHh4" * 65 + "eHg=", "value_bytes": 301}),
    ],
)
def test_shown_is_text_or_base64_of_the_first_200_bytes(data: bytes | None, expected: dict[str, object]) -> None:
    assert shown("value", data) == expected


@pytest.mark.parametrize(
    ("data", "at", "expected"),
    [
        (b"x" * 300, 199, {"value": "x" * 200, "value_bytes": 300}),
        (b"x" * 300, 200, {"value": "x" * 140, "value_bytes": 300, "value_from": 160}),
        (b"x" * 300, 300, {"value": "x" * 40, "value_bytes": 300, "value_from": 260}),
        ("é".encode() * 200, 241, {"value": "é" * 100, "value_bytes": 400, "value_from": 200}),
    ],
)
def test_what_differs_far_behind_is_shown_from_before_there(data: bytes, at: int, expected: dict[str, object]) -> None:
    assert shown("value", data, at) == expected
