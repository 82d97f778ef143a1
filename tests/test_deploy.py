"""The files of docs/deploy: image, compose file and unit are whole, and the product takes their settings."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from repl.auth.exposure import missing_lines
from repl.config import ENVIRONMENT_PREFIX, NODE_SETTINGS, NodeConfig, load_node_config

ROOT: Final = Path(__file__).parents[1]
DEPLOY: Final = ROOT / "docs" / "deploy"
UNIT: Final = DEPLOY / "vlsnlog.service"
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
NODES: Final = {name: each for name, each in COMPOSE["services"].items() if "profiles" not in each}
_CLIENTS: Final = {"VLSNLOG_URL", "VLSNLOG_TOKEN_FILE"}
"""Variables of a client, which a node in the same environment passes over."""
EXPOSURE_MOST: Final = "20"
"""Tenths of the exposure level of `systemd-analyze security`, from 0 (none) to 100."""


def settings_of(environment: dict[str, str]) -> NodeConfig:
    """Returns the settings that the product makes of a node's file and these variables."""
    config = load_node_config(path=DEPLOY / "node.toml", environment=environment)
    names = {f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in NODE_SETTINGS} | _CLIENTS
    assert environment.keys() <= names, environment.keys() - names
    return config


def is_safe(config: NodeConfig) -> bool:
    """Says whether a node starts so beyond loopback, without ``insecure``."""
    return not config.insecure and missing_lines(config) == []


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", " ", (DEPLOY / "Containerfile").read_text())
    return [
        (word, rest.strip())
        for word, rest in re.findall(r"^([A-Z]+) (.*)$", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE), re.MULTILINE)
    ]


def test_each_node_of_the_compose_file_has_settings_that_are_safe() -> None:
    assert sorted(NODES) == ["n1", "n2", "n3"]
    for name, node in NODES.items():
        config = settings_of(node["environment"])
        assert is_safe(config)
        assert (config.name, list(config.members)) == (name, list(NODES))
        assert config.members[config.name] == f"https://{node['hostname']}:{config.port}"
        assert node["volumes"] == [f"{name}:{config.dir}"] and name in COMPOSE["volumes"]
        files = [config.group_key, config.tls_ca, config.tls_cert, config.tls_key]
        targets = [each["target"] if isinstance(each, dict) else each for each in node["secrets"]]
        assert sorted(map(str, files)) == sorted(f"/run/secrets/{target}" for target in targets)


def test_secrets_of_one_node_are_not_another_ones() -> None:
    sources = {
        name: {each["source"] if isinstance(each, dict) else each for each in service["secrets"]}
        for name, service in COMPOSE["services"].items()
    }
    for name in NODES:
        assert sources[name] == {"group.key", "ca.pem", f"{name}.pem", f"{name}.key"}
    assert sources["client"] == {"ca.pem", "app.token"}
    assert COMPOSE["services"]["client"]["environment"]["VLSNLOG_TOKEN_FILE"] == "/run/secrets/app.token"
    assert set().union(*sources.values()) == set(COMPOSE["secrets"])
    assert not list(DEPLOY.rglob("*.key")), "no secret lies in the repository"


def test_each_node_of_the_compose_file_is_watched_restarted_and_confined() -> None:
    for node in NODES.values():
        assert node["restart"] == "unless-stopped" and node["healthcheck"]["test"][0] == "CMD"
        assert (node["read_only"], node["cap_drop"]) == (True, ["ALL"])
        assert node["ulimits"]["nofile"] >= 65_536
        assert {each["source"] for each in node["configs"]} <= set(COMPOSE["configs"])
        assert (DEPLOY / node["build"]["context"]).resolve() == ROOT
        assert (ROOT / node["build"]["dockerfile"]).is_file()


def test_no_file_says_insecure() -> None:
    assert [path.name for path in DEPLOY.iterdir() if "insecure" in path.read_text()] == []


def test_the_image_runs_a_node_as_a_user_of_its_own() -> None:
    steps = instructions()
    last = [word for word, _ in steps][::-1].index("FROM")
    final = dict(steps[-last:])
    assert final["USER"].split(":")[0] not in ("root", "0")
    assert (final["STOPSIGNAL"], final["VOLUME"]) == ("SIGTERM", str(settings_of(NODES["n1"]["environment"]).dir))
    assert NODES["n1"]["command"] == yaml.safe_load(final["CMD"])
    health = NODES["n1"]["healthcheck"]["test"]
    assert health[1:] == yaml.safe_load(final["HEALTHCHECK"].partition(" CMD ")[2])
    compile(health[3], "healthcheck", "exec")


def test_the_image_is_built_from_the_lock_file_and_what_is_there() -> None:
    steps = instructions()
    copied = [each for word, rest in steps if word == "COPY" and "--from" not in rest for each in rest.split()[:-1]]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(packages["only-include"]) < set(copied)
    assert any(word == "RUN" and rest.startswith("uv sync --frozen ") for word, rest in steps)
    (version,) = re.findall(r"^UV_VERSION := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert ("RUN", f"pip install --no-cache-dir uv=={version}") in steps


def test_hadolint_finds_nothing_in_the_image() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("there is no hadolint")
    done = subprocess.run([hadolint, DEPLOY / "Containerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def unit() -> list[tuple[str, str]]:
    return [(name, value) for name, value in re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE)]


def test_the_unit_gives_a_node_settings_that_are_safe() -> None:
    lines, here = unit(), {"%l": "n1", "%d": "/run/credentials/vlsnlog.service"}
    said = " ".join(value for name, value in lines if name == "Environment")
    for short, value in here.items():
        said = said.replace(short, value)
    config = settings_of(dict(each.split("=", 1) for each in said.split()))
    assert is_safe(config)
    handed = {value.partition(":")[0] for name, value in lines if name == "LoadCredential"}
    files = [config.group_key, config.tls_ca, config.tls_cert, config.tls_key]
    assert {str(path) for path in files} == {f"{here['%d']}/{name}" for name in handed}
    assert dict(lines)["StateDirectory"] == str(config.dir).removeprefix("/var/lib/")


def test_the_unit_waits_for_what_a_node_says_and_restarts_it() -> None:
    lines = dict(unit())
    assert (lines["Type"], lines["Restart"], lines["RestartPreventExitStatus"]) == ("notify", "on-failure", "2")
    assert int(lines["WatchdogSec"]) > 0 and int(lines["LimitNOFILE"]) >= 65_536
    assert shlex.split(lines["ExecStart"])[1:] == NODES["n1"]["command"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_takes_the_unit_and_calls_it_confined(tmp_path: Path) -> None:
    path = tmp_path / UNIT.name
    path.write_text(UNIT.read_text().replace("/opt/vlsnlog/bin/vlsnlog", "/bin/true"))
    for words in (["verify"], ["security", "--offline=true", f"--threshold={EXPOSURE_MOST}"]):
        done = subprocess.run(["systemd-analyze", *words, path], capture_output=True, text=True, check=False)
        assert done.returncode == 0 and not (words == ["verify"] and done.stderr), done.stdout[-300:] + done.stderr
