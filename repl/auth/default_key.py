"""Where a node's key file is if its settings name none, and what calls without a token may do then.

listen and all members on loopback     $XDG_STATE_HOME/vlsnlog/GROUP.key, which all nodes of this user share, or the
                                       file of the settings; calls without a token do all but administer
any other address                      no key: a key has to be brought to all machines by a person
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from repl.auth import group_key
from repl.auth.addresses import all_on_loopback
from repl.config import NodeConfig
from vlsn.errors import BadArgument
from vlsn.seams import Disk, Random

STATE_HOME = "XDG_STATE_HOME"


def with_key(config: NodeConfig, disk: Disk, random: Random, environment: Mapping[str, str]) -> NodeConfig:
    """Returns the settings with the group's key file, which is made if all is on loopback and it is missing. Raises
    ``BadArgument`` if there is no home for it."""
    if config.group_key is not None or not all_on_loopback(config):
        return config
    path = _path(config.group, environment)
    try:
        group_key.make(disk, str(path), random)
    except BadArgument as error:
        raise BadArgument(
            f"{error}; or make one elsewhere, and name it as group_key: `vlsnlog key create FILE`"
        ) from None
    return replace(config, group_key=path)


def anonymous_of(config: NodeConfig) -> str:
    """Returns the setting ``anonymous``, or its default: ``append`` for a group on loopback that has a key, else
    ``all``."""
    if config.anonymous is not None:
        return config.anonymous
    return "append" if config.group_key is not None and all_on_loopback(config) else "all"


def _path(group: str, environment: Mapping[str, str]) -> Path:
    state, home = environment.get(STATE_HOME, ""), environment.get("HOME", "")
    if state.startswith("/"):  # a relative one is to be ignored, says the specification
        return Path(state) / "vlsnlog" / f"{group}.key"
    if home.startswith("/"):
        return Path(home) / ".local" / "state" / "vlsnlog" / f"{group}.key"
    raise BadArgument(
        f"group_key: not given, and there is neither {STATE_HOME} nor HOME to keep it in; make one, and name it as "
        "group_key: `vlsnlog key create FILE`"
    )
