"""Options of the shipped consumers: a wrong one is refused as the settings are read, and no password is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repl.config import load_node_config
from tests.e2e.cdc_pages import example, toml
from vlsn.errors import BadArgument

FILES: list[tuple[str, dict[str, Any], str]] = [
    ("json-lines.md", {"options": {"directory": "here"}}, "options: directory: 'here' is no absolute path"),
    ("json-lines.md", {"options": {"directory": "/x", "colour": 5}}, "unknown option 'colour'; there are directory"),
    ("json-lines.md", {"run_on": "master"}, 'run_on: jsonl needs run_on = "node"'),
    ("parquet.md", {"options": {}}, "required field `directory`"),
    ("parquet.md", {"options": {"directory": "/x", "file_row": 5}}, "did you mean 'file_rows'?"),
    ("parquet.md", {"options": {"directory": "/x", "pattern": "{last}"}}, "has no {first}"),
]
POSTGRES: list[tuple[dict[str, Any], str]] = [
    ({}, "required field `dsn`"),
    ({"dsn": ""}, "options: dsn: write it as postgresql://USER@HOST/DATABASE"),
    ({"dsn": "postgresql://me:hunter2@db/shop"}, "has a password; give it by password_file"),
    ({"dsn": "postgresql://db/shop?user=me&password=hunter2"}, "has a password"),
    ({"dsn": "host=db password = hunter2"}, "has a password"),
    ({"dsn": "host=db PASSWORD='hunter2'"}, "has a password"),
    ({"dsn": "host=db", "password": "hunter2"}, "unknown option 'password'"),
    ({"dsn": "host=db", "password_file": "here"}, "options: password_file: 'here' is no absolute path"),
    ({"dsn": "host=db", "password_file": "/a", "password_env": "B"}, "by one of password_file"),
    ({"dsn": "host=db", "table": "a;drop"}, "options: table: 'a;drop' is no name of a table"),
    ({"dsn": "host=db", "table": "a", "positions_table": "a"}, "is the table of the rows"),
    ({"dsn": "host=db", "timeout_s": 100}, "options: timeout_s"),
]
MIRROR: list[tuple[dict[str, Any], str]] = [
    ({"url": "there"}, "options: url: 'there' is no node; write it as http://HOST:PORT"),
    ({"url": ""}, "options: url: 0 nodes"),
    ({"urls": "http://a:1"}, "unknown option 'urls'; did you mean 'url'?"),
    ({}, "required field `url`"),
    ({"url": "http://a:1", "group": "a b"}, "is no name of a group"),
    ({"url": "http://a:1", "timeout_s": 60}, "options: timeout_s"),
    ({"url": "http://a:1", "token_file": "token"}, "options: token_file: 'token' is no absolute path"),
    ({"url": "http://a:1", "token": "secret"}, "unknown option 'token'"),
]
WEBHOOK: list[tuple[dict[str, Any], str]] = [
    ({"url": "https://a/b"}, "give the secret by one of secret_file and secret_env"),
    ({"url": "https://a/b", "secret_file": "/s", "secret_env": "S"}, "give the secret by one of"),
    ({"url": "https://a/b", "secret": "abc"}, "unknown option 'secret'"),
    ({"url": "https://a/b", "secret_file": "s"}, "options: secret_file: 's' is no absolute path"),
    ({"url": "https://a/b", "secret_env": "A B"}, "is no name of an environment variable"),
    ({"url": "http://a/b", "secret_env": "S"}, "is sent in the clear"),
    ({"url": "ftp://a/b", "secret_env": "S"}, "is no URL to post to"),
    ({"url": "https:///b", "secret_env": "S"}, "is no URL to post to"),
    ({"url": "https://a:99999/", "secret_env": "S"}, "is no URL to post to"),
    ({"url": "https://a/ü", "secret_env": "S"}, "is no URL to post to"),
    ({"url": "https://me:hunter2@a/b", "secret_env": "S"}, "has a name or a password"),
    ({"url": "https://a/b", "secret_env": "S", "lanes": 33}, "options: lanes"),
    ({"url": "https://a/b", "secret_env": "S", "batch_bytes": "1GiB"}, "options: batch_bytes"),
    ({"url": "https://a/b", "secret_env": "S", "timeout_s": 0}, "options: timeout_s"),
]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *FILES,
    *(("postgres.md", {"options": options}, said) for options, said in POSTGRES),
    ("postgres.md", {"options": {"dsn": "host=db"}, "run_on": "node"}, 'postgres needs run_on = "master"'),
    *(("mirror.md", {"options": options}, said) for options, said in MIRROR),
    ("mirror.md", {"options": {"url": "http://a:1"}, "run_on": "node"}, 'mirror needs run_on = "master"'),
    *(("webhook.md", {"options": options}, said) for options, said in WEBHOOK),
]


@pytest.mark.parametrize(("page", "change", "said"), REFUSED)
def test_a_wrong_option_is_refused_in_words(page: str, change: dict[str, Any], said: str, tmp_path: Path) -> None:
    shown = {**example(page), **change}
    path = tmp_path / "node.toml"
    path.write_text(f'name = "n1"\ndir = "data"\ngroup = "g"\n[members]\nn1 = "http://127.0.0.1:1"\n{toml(shown)}')
    with pytest.raises(BadArgument) as refused:
        load_node_config(path=path, environment={})
    text = str(refused.value)
    assert f"cdc {shown['name']}: " in text and said in text and "hunter2" not in text and "\n" not in text
    assert [each.name for each in tmp_path.iterdir()] == ["node.toml"], "nothing was made"
