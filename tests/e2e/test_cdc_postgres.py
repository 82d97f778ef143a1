"""The options of the consumer ``postgres``: what is wrong is refused before the node starts, and shows no password."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cdc_pages import example, toml
from tests.e2e.commands import run
from tests.e2e.test_cdc import One

pytestmark = pytest.mark.real


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"options": {}}, "required field `dsn`"),
        ({"options": {"dsn": ""}}, "options: dsn: write it as postgresql://USER@HOST/DATABASE"),
        ({"options": {"dsn": "postgresql://me:hunter2@db/shop"}}, "has a password; give it by password_file"),
        ({"options": {"dsn": "postgresql://db/shop?user=me&password=hunter2"}}, "has a password"),
        ({"options": {"dsn": "host=db password = hunter2"}}, "has a password"),
        ({"options": {"dsn": "host=db PASSWORD='hunter2'"}}, "has a password"),
        ({"options": {"dsn": "host=db", "password": "hunter2"}}, "unknown option 'password'"),
        (
            {"options": {"dsn": "host=db", "password_file": "here"}},
            "options: password_file: 'here' is no absolute path",
        ),
        ({"options": {"dsn": "host=db", "password_file": "/a", "password_env": "B"}}, "by one of password_file"),
        ({"options": {"dsn": "host=db", "table": "a;drop"}}, "options: table: 'a;drop' is no name of a table"),
        ({"options": {"dsn": "host=db", "table": "a", "positions_table": "a"}}, "is the table of the rows"),
        ({"options": {"dsn": "host=db", "timeout_s": 100}}, "options: timeout_s"),
        ({"options": {"dsn": "host=db"}, "run_on": "node"}, 'postgres needs run_on = "master"'),
    ],
)
def test_a_wrong_option_is_refused_before_the_node_starts(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    one = One(tmp_path, toml({**example("postgres.md"), **change}))
    refused = run("node", "--config", str(one.directory / "node.toml")).refused()
    assert "cdc rows: " in refused and said in refused and "hunter2" not in refused
    assert not (tmp_path / "data").exists(), "nothing was made"
