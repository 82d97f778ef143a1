"""Where a node's key file is if its settings name none: on loopback it is made by itself.

listen and all members on loopback     $XDG_STATE_HOME/vlsnlog/GROUP.key, which all nodes of this user share
any other address                      no key: a key has to be brought to all machines by a person
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from repl.auth import group_key
from repl.config import NodeConfig
from vlsn.errors import BadArgument
from vlsn.seams import Disk, Random

STATE_HOME = "XDG_STATE_HOME"


def with_key(config: NodeConfig, disk: Disk, random: Random, environment: Mapping[str, str]) -> NodeConfig:
    """Returns the settings with the group's key file, which is made if all is on loopback and it is missing. Raises
    ``BadArgument`` if there is no home for it."""
    hosts = [config.host, *(urlsplit(url).hostname or "" for url in config.members.values())]
    if config.group_key is not None or not all(map(is_loopback, hosts)):
        return config
    path = _path(config.group, environment)
    try:
        group_key.make(disk, str(path), random)
    except BadArgument as error:
        raise BadArgument(f"{error}; or make one elsewhere, and name it as group_key: `vlsnlog key new FILE`") from None
    return replace(config, group_key=path)


def is_loopback(host: str) -> bool:
    """Says whether ``host`` is this machine's loopback, by its name or as 127.0.0.0/8 or ::1."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _path(group: str, environment: Mapping[str, str]) -> Path:
    state, home = environment.get(STATE_HOME, ""), environment.get("HOME", "")
    if state.startswith("/"):  # a relative one is to be ignored, says the specification
        return Path(state) / "vlsnlog" / f"{group}.key"
    if home.startswith("/"):
        return Path(home) / ".local" / "state" / "vlsnlog" / f"{group}.key"
    raise BadArgument(
        f"group_key: not given, and there is neither {STATE_HOME} nor HOME to keep it in; make one, and name it as "
        "group_key: `vlsnlog key new FILE`"
    )
