"""Whether a node may serve addresses beyond loopback. Anybody who reaches such an address could otherwise read, append
and give orders.

    safe       TLS, the group's key, and ``anonymous = "none"``                starts
    insecure   one of these is missing, but the settings say ``insecure``      starts; status, page, metrics show it
    exposed    one is missing, and the log is empty or of level 5 or later     does not start: the error names the lines
               one is missing, and the log is of an earlier level              starts with a warning, like a release
                                                                               before keys; it does not speak level 5

The last line lets a running group be upgraded node by node. An exposed node does not speak level 5, so the group cannot
be raised to a level at which this node would not start again.
"""

from __future__ import annotations

from repl.auth.addresses import all_on_loopback
from repl.auth.default_key import anonymous_of
from repl.config import NodeConfig
from vlsn.errors import BadArgument, Damaged
from vlsn.levels import SIGNED
from vlsn.recover.identity import NODE_FILE_NAME
from vlsn.seams import Disk
from vlsn.segments.directory import LOCK_NAME
from vlsn.state import node_file

_NONE = "none"


def missing_lines(config: NodeConfig) -> list[str]:
    """Returns the lines of the config file with which the node would be safe. Returns none for a node that is safe, or
    serves loopback only."""
    if all_on_loopback(config):
        return []
    return [
        *(['tls = "require"'] if config.tls == "off" else []),
        *(['group_key = "group.key"'] if config.group_key is None else []),
        *([f'anonymous = "{_NONE}"'] if anonymous_of(config) != _NONE else []),
    ]


def is_exposed(config: NodeConfig) -> bool:
    """Says whether the node serves addresses beyond loopback without protection, and its settings do not allow it."""
    return not config.insecure and bool(missing_lines(config))


def check_exposure(config: NodeConfig, disk: Disk) -> None:
    """Checks that an exposed node has a log of a level before 5. Reads the node file, and changes nothing. Raises
    ``BadArgument``, which names the lines to add."""
    if not is_exposed(config):
        return
    level = _level(disk, str(config.dir))
    if level is None or level >= SIGNED:
        log = "its log is empty" if level is None else f"its log is of level {level}"
        raise BadArgument(
            f"insecure: {config.name} serves {config.listen} and {config.url}, which is not only loopback, and {log}; "
            f"add {', '.join(missing_lines(config))} (docs/running.md, Beyond loopback), or insecure = true"
        )


def _level(disk: Disk, directory: str) -> int | None:
    """Returns the level of the log in ``directory``: None if there is no log, 1 if the node file cannot be read."""
    try:
        names = set(disk.list(directory)) - {LOCK_NAME}
    except FileNotFoundError:
        return None
    if NODE_FILE_NAME not in names:
        return 1 if any(name.endswith(".vlog") for name in names) else None
    try:
        return node_file.read(disk, f"{directory}/{NODE_FILE_NAME}").level
    except (Damaged, OSError):
        return 1
