"""A finding's values as a report shows them: text or base64, and from where they differ on."""

from __future__ import annotations

import pytest

from repl.audit.findings import shown


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
