"""Options that several commands share, and where their values come from.

``Command`` gives every option an environment variable (``--base-port`` is ``VLSNLOG_BASE_PORT``). ``Command`` also adds
``--config`` and ``--log-level``. The values in the config file become defaults.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from repl import config
from repl.config import ACK_POLICIES, DEFAULT_URL, ENVIRONMENT_PREFIX, LOG_LEVELS
from repl.credentials import bearer
from repl.credentials.urls import split_urls
from vlsn.errors import BadArgument
from vlsn.ids import is_name, is_part

if TYPE_CHECKING:
    from vlsn.real.disk import PosixDisk
    from vlsn.real.lmdb_store import LmdbStores

F = TypeVar("F", bound=Callable[..., Any])
_FROM_FILE: Final = "vlsnlog.config"
_CONTEXT: Final = "vlsnlog.context"
_DIRECTORY: Final = click.Path(exists=True, file_okay=False, path_type=Path)


def _load_config(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    if path is None or ctx.resilient_parsing:
        return
    ctx.meta[_FROM_FILE] = path
    values = config.read_file(path)
    values |= {
        name: str(path.parent / str(values[name]))
        for name in ("tls_ca", "tls_cert", "tls_key", "group_key")
        if name in values
    }
    ctx.default_map = {**(ctx.default_map or {}), **values}


def _set_log_level(ctx: click.Context, _: click.Parameter, level: str | None) -> None:
    if level is None or ctx.resilient_parsing:
        return
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")


def config_path() -> Path | None:
    """Returns the config file that ``--config`` or its environment variable names."""
    path = click.get_current_context().meta.get(_FROM_FILE)
    assert path is None or isinstance(path, Path)
    return path


def is_flagged(name: str) -> bool:
    """Returns whether the parameter was passed on the command line. A variable or a config file may be meant for other
    commands."""
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


class FiniteRange(click.FloatRange):
    """A number within a range. NaN is refused, although it is neither below nor above the range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class NameType(click.ParamType):  # type: ignore[type-arg]
    """The name of a member or of a CDC consumer. A name is part of a path, so no other text is allowed."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not (is_name(text) and is_part(text)):
            self.fail(f"{text[:40]!r} is no name, which is 1 to 32 of A-Z a-z 0-9 . _ -", param, ctx)
        return text


config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    is_eager=True,
    expose_value=False,
    callback=_load_config,
    envvar=ENVIRONMENT_PREFIX + "CONFIG",
    help="TOML file with the same names as the options.",
)
log_level_option = click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS, case_sensitive=False),
    expose_value=False,
    callback=_set_log_level,
    envvar=ENVIRONMENT_PREFIX + "LOG_LEVEL",
    help="Log to stderr from this level on.",
)


class WithExample(click.Command):
    """A command whose help ends with its example."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from repl.cli.examples import EXAMPLES

        words, at = [str(self.name)], ctx.parent
        while at is not None and at.parent is not None:
            words.insert(0, str(at.command.name))
            at = at.parent
        if (example := EXAMPLES.get(" ".join(words))) is not None:
            with formatter.section("Example"):
                formatter.write(f"{'':{formatter.current_indent}}$ {example}\n")


class TakesConfig(WithExample):
    """A command whose options' defaults come from its parent's config file."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if parent is not None and parent.default_map:
            extra.setdefault("default_map", parent.default_map)
        return super().make_context(info_name, args, parent, **extra)


class Command(TakesConfig):
    """A command whose options also come from the environment and the config file."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config_option(self)
        log_level_option(self)
        for each in self.params:
            if isinstance(each, click.Option) and each.envvar is None:
                flag = max(each.opts, key=len)
                each.envvar = ENVIRONMENT_PREFIX + flag.lstrip("-").replace("-", "_").upper()


class Commands(TakesConfig, click.Group):
    """A group of commands, whose help lists the commands in order, each with the first sentence of its own help.
    ``also`` are other names of commands, which earlier releases and other tools use."""

    def __init__(self, *args: Any, also: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.also: Final = dict(also or {})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, self.also.get(cmd_name, cmd_name))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        others = {name: f" Also: {other}." for other, name in self.also.items()}
        rows = [
            (name, command.get_short_help_str(limit=200) + others.get(name, ""))
            for name, command in self.commands.items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def asking(self, *parameters: Callable[[Any], Any], name: str | None = None) -> Callable[[F], click.Command]:
        """Adds a command that sends requests to nodes. After its own parameters the command has ``url`` and
        ``as_json``."""

        def made(function: F) -> click.Command:
            for each in (json_option, key_option, url_option, *reversed(parameters)):
                function = each(function)
            return self.command(cls=Command, name=name)(function)

        return made


def format_option(text: str) -> Callable[[F], F]:
    """Adds the option ``--format``: raw values or JSON. ``text`` is the option's help."""
    return click.option("--format", type=click.Choice(["raw", "json"]), default="raw", show_default=True, help=text)


def _durability(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    from vlsn.durability import group_durability

    return str(group_durability(value))


def _passed_on(ctx: click.Context, option: click.Parameter, path: Path | None) -> None:
    """Passes the path on by its variable, which child processes read, too (Spark's workers)."""
    if path is not None and not ctx.resilient_parsing:
        assert option.name is not None
        os.environ[ENVIRONMENT_PREFIX + option.name.upper()] = str(path)


_TLS_FILES: Final = {
    "--tls-ca": "Authorities to trust for https://, in PEM; default: the system's.",
    "--tls-cert": "Certificate of this client, in PEM.",
    "--tls-key": "Key of that certificate.",
}


def _token_file(ctx: click.Context, option: click.Parameter, path: Path | None) -> None:
    """Passes the file on by its variable, as ``_tls_file`` does. The file counts instead of the environment's token."""
    if path is not None and not ctx.resilient_parsing:
        if ctx.get_parameter_source("token_file") is click.core.ParameterSource.COMMANDLINE:
            os.environ.pop(bearer.VARIABLE, None)
        os.environ[bearer.FILE_VARIABLE] = str(path)


def client_options(function: F) -> F:
    """Adds the options for TLS files, which the client reads when it calls an https URL, and for the token's file."""
    function = click.option(
        "--token-file",
        type=click.Path(path_type=Path, dir_okay=False),
        expose_value=False,
        callback=_token_file,
        help="File of mode 0600 with the client's token; default: VLSNLOG_TOKEN.",
    )(function)
    for flag, text in reversed(_TLS_FILES.items()):
        kind = click.Path(path_type=Path, dir_okay=False)
        function = click.option(flag, type=kind, expose_value=False, callback=_passed_on, help=text)(function)
    return function


def key_option(function: F) -> F:
    """Adds ``--group-key``: the command signs its orders with it."""
    return click.option(
        "--group-key",
        type=click.Path(path_type=Path, dir_okay=False),
        expose_value=False,
        callback=_passed_on,
        help="Key file of the group, which signs orders to nodes; default: on loopback the node's own.",
    )(function)


def _load_context(ctx: click.Context, _: click.Parameter, name: str | None) -> None:
    """Takes the context's values as defaults, below those of the config file."""
    if ctx.resilient_parsing:
        return
    from repl.cli.contexts import Contexts

    contexts = Contexts.read()
    if name is None and not contexts.current:
        return
    ctx.meta[_CONTEXT] = name or contexts.current
    ctx.default_map = {**contexts.of(name or contexts.current).defaults(), **(ctx.default_map or {})}


def context_name() -> str:
    """Returns the name of the context that this command uses; "" if it uses none."""
    return str(click.get_current_context().meta.get(_CONTEXT, ""))


def url_option(function: F) -> F:
    """Adds ``--url``, a checked list of URLs, ``--context``, and the options for the files of TLS and of the token."""
    function = click.option(
        "--context",
        metavar="NAME",
        is_eager=True,
        expose_value=False,
        callback=_load_context,
        help="Name of a context: `vlsnlog context list`. Default: the one in use.",
    )(function)
    return click.option(
        "--url",
        default=DEFAULT_URL,
        show_default=True,
        callback=lambda ctx, option, value: split_urls(value),
        help="URLs of nodes, separated by commas.",
    )(client_options(function))


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
directory_argument = click.argument("directory", type=_DIRECTORY, metavar="DIR")
maybe_directory_argument = click.argument("directory", type=_DIRECTORY, metavar="[DIR]", required=False)
"""An optional DIR argument. Without DIR the command sends requests to nodes."""
acks_option = click.option(
    "--acks",
    type=click.Choice(ACK_POLICIES, case_sensitive=False),
    default="majority",
    show_default=True,
    help="Which nodes must have the entries.",
)
durability_option = click.option(
    "--durability",
    metavar="LEVEL[,LEVEL]",
    callback=_durability,
    help="sync, write_no_sync or no_sync, or the master's and the replicas': less than the group's setting.",
)
"""The option ``--durability``; the parameter is a checked durability, or None if the option is missing."""


def require_log(directory: Path) -> tuple[PosixDisk, LmdbStores]:
    """Returns the disk and the stores for reading a node's directory. Raises ``BadArgument`` if the directory has no
    log, ``WrongVersion`` if a later version has written the log."""
    from vlsn.real.disk import PosixDisk
    from vlsn.real.lmdb_store import LmdbStores
    from vlsn.recover.versions import check_versions

    if not (directory / "node.id").exists() and not any(directory.glob("*.vlog")):
        inside = sorted(each.parent.name for each in directory.glob("*/node.id"))
        advice = f"name one of its nodes: {', '.join(inside)}" if inside else "name the directory of a node"
        raise BadArgument(f"{directory}: holds no log; {advice}")
    disk = PosixDisk()
    check_versions(disk, str(directory))
    return disk, LmdbStores()
