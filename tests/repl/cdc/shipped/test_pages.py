"""The pages on shipped consumers name each option with its default, and no other."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from repl.cdc.shipped.options import options_of
from repl.cdc_settings import Checked, JsonLinesOptions, MirrorOptions, ParquetOptions, PostgresOptions, WebhookOptions
from repl.config import whole_size
from tests.e2e.cdc_pages import example, options_shown

KINDS: dict[str, type[Checked]] = {
    "json-lines.md": JsonLinesOptions,
    "mirror.md": MirrorOptions,
    "parquet.md": ParquetOptions,
    "postgres.md": PostgresOptions,
    "webhook.md": WebhookOptions,
}


def value_of(shown: str) -> Any:
    if shown == "none":
        return None
    if re.fullmatch(r"\d+ [KMG]iB", shown):
        return whole_size(shown.replace(" ", ""), "a page")
    return msgspec.json.decode(shown)


@pytest.mark.parametrize("page", KINDS)
def test_a_page_names_each_option_with_its_default(page: str) -> None:
    kind = KINDS[page]
    defaults = {
        field.encode_name: None if field.default is msgspec.NODEFAULT else field.default
        for field in msgspec.structs.fields(kind)
    }
    assert {name: value_of(shown) for name, shown in options_shown(page).items()} == defaults


@pytest.mark.parametrize("page", KINDS)
def test_a_pages_example_is_understood(page: str) -> None:
    assert options_of(KINDS[page], example(page)["options"])
