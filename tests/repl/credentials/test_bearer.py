"""A client's token: where it is taken from, and where it may be sent."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import msgspec
import pytest

from repl.auth.tokens import new_secret
from repl.cdc_settings import MirrorOptions
from repl.credentials.bearer import FILE_VARIABLE, VARIABLE, Bearer
from repl.spark.options import Use, read_options
from tests.fakes.random import SeededRandom
from vlsn.errors import BadArgument, Forbidden, Unauthorized

ONE, OTHER = new_secret(SeededRandom(1)), new_secret(SeededRandom(2))
URL = "https://a.example:7701"


def written(path: Path, text: str, mode: int = 0o600) -> str:
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def made(token: str | None = None, token_file: str | None = None, environment: dict[str, str] | None = None) -> Bearer:
    bearer = Bearer.of(token, token_file, environment or {})
    assert bearer is not None
    return bearer


def test_a_token_is_taken_from_an_argument_a_file_or_the_environment(tmp_path: Path) -> None:
    path = written(tmp_path / "token", f"{ONE.text}\n", 0o400)
    expected = f"Bearer {ONE.text}"
    assert made(ONE.text).header(URL) == expected
    assert made(token_file=path).header(URL) == expected
    assert made(environment={VARIABLE: f" {ONE.text}\n"}).header(URL) == expected
    assert made(environment={FILE_VARIABLE: path}).header(URL) == expected
    both = {VARIABLE: OTHER.text, FILE_VARIABLE: path}
    assert made(ONE.text, environment=both).header(URL) == expected, "an argument counts instead of the environment"
    assert made(token_file=path, environment={VARIABLE: OTHER.text}).header(URL) == expected
    assert Bearer.of("", environment=both) is None and Bearer.of(environment={}) is None
    assert Bearer.of(environment={VARIABLE: "", FILE_VARIABLE: ""}) is None
    for token, token_file, environment in ((ONE.text, path, {}), (None, None, both)):
        with pytest.raises(BadArgument, match="both are given"):
            Bearer.of(token, token_file, environment)


@pytest.mark.parametrize(
    "text", [ONE.text[:-1], f"{ONE.text}x", ONE.text.upper(), f"Bearer {ONE.text}", f"{ONE.text}\r\nX: y", "é"]
)
def test_a_text_that_is_no_token_is_refused_and_not_shown(text: str, tmp_path: Path) -> None:
    path = written(tmp_path / "token", text)
    given: list[tuple[str | None, str | None, dict[str, str]]] = [
        (text, None, {}),
        (None, path, {}),
        (None, None, {VARIABLE: text}),
        (None, None, {FILE_VARIABLE: path}),
    ]
    for arguments in given:
        with pytest.raises(BadArgument, match="vlt_ID_SECRET") as error:
            Bearer.of(*arguments)
        assert text not in str(error.value) and ONE.secret[:-1] not in repr(error.value)


@pytest.mark.parametrize("path", [ONE.text, f"/tmp/{ONE.text}"])
def test_a_token_in_the_place_of_its_file_is_not_shown(path: str) -> None:
    options = {"url": URL, "token_file": path}
    for call in (
        lambda: Bearer.of(token_file=path),
        lambda: Bearer.of(environment={FILE_VARIABLE: path}),
        lambda: msgspec.convert(options, MirrorOptions).check(),
        lambda: read_options({"path": URL, "tokenFile": path}, Use.BATCH),
    ):
        with pytest.raises(BadArgument, match="is a token itself") as error:
            call()
        assert ONE.secret not in str(error.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o644, 0o660, 0o440])
def test_a_file_that_others_may_use_is_refused(mode: int, tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match=f"mode {mode:04o}.*chmod 600"):
        Bearer.of(token_file=written(tmp_path / "token", ONE.text, mode))


def test_what_is_no_readable_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", tmp_path / "none", tmp_path):
        with pytest.raises(BadArgument, match=r"^token_file: "):
            Bearer.of(token_file=str(path))
    with pytest.raises(BadArgument, match="holds no token"):
        Bearer.of(token_file=written(tmp_path / "long", ONE.text + "\n" * 5_000 + "x"))


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.7:7701/v1/entries",
        "http://example.com:7701",
        "http://127.0.0.1.example.com:7701",
        "http://127.0.0.1@example.com:7701/",
        "http://localhost.example.com:7701",
        "http://[2001:db8::1]:7701",
        "http://0.0.0.0:7701",
        "HTTP://10.0.0.7:7701",
        "ws://10.0.0.7:7701",
        "http://[::1:7701/",
    ],
)
def test_a_token_is_not_sent_in_the_clear_to_another_machine(url: str) -> None:
    with pytest.raises(BadArgument, match="https") as error:
        made(ONE.text).check([URL, url])
    assert ONE.secret not in str(error.value)


@pytest.mark.parametrize(
    "url",
    [URL, "http://127.0.0.1:7701/v1/entries?a=/b", "http://127.9.9.9:1", "http://localhost:7701", "http://[::1]:7701/"],
)
def test_a_token_is_sent_over_https_or_to_loopback(url: str) -> None:
    assert made(ONE.text).header(url) == f"Bearer {ONE.text}"


def test_a_file_is_read_again_after_a_refusal(tmp_path: Path) -> None:
    path = written(tmp_path / "token", ONE.text)
    bearer, same = made(token_file=path), made(ONE.text)
    refused = bearer.header(URL)
    assert not bearer.renewed(refused) and not same.renewed(refused)
    written(tmp_path / "token", OTHER.text)
    assert bearer.renewed(refused) and bearer.header(URL) == f"Bearer {OTHER.text}"
    assert bearer.renewed(refused), "another call has read it already"
    assert not bearer.renewed(bearer.header(URL))
    written(tmp_path / "token", ONE.text, 0o644)
    with pytest.raises(BadArgument, match="mode 0644"):
        bearer.renewed(bearer.header(URL))


def test_no_text_of_a_bearer_shows_the_secret() -> None:
    bearer = made(ONE.text)
    assert ONE.id in repr(bearer)
    for text in (repr(bearer), str(bearer), f"{bearer}", repr([bearer]), repr(ONE)):
        assert ONE.secret not in text


@pytest.mark.parametrize("kind", [Unauthorized, Forbidden])
def test_refusals_of_a_token_pass_between_processes(kind: type[Unauthorized | Forbidden]) -> None:
    copy = pickle.loads(pickle.dumps(kind("token abcdefgh was revoked")))
    assert type(copy) is kind and str(copy) == "token abcdefgh was revoked" and copy.retry_safe and not copy.transient
