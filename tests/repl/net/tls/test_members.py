"""The members that a certificate names."""

from __future__ import annotations

import pytest

from repl.net.tls import members_of


@pytest.mark.parametrize(
    ("uri", "members"),
    [("vlsnlog:orders/n1", {"n1"}), ("n1", set()), ("vlsnlog:other/n1", set()), ("https://orders/n1", set())],
)
def test_only_a_uri_of_the_group_names_a_member(uri: str, members: set[str]) -> None:
    assert members_of([uri], "orders") == members
