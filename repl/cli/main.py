"""The entry point ``vlsnlog``: runs a command, and maps its outcome to an exit status.

Exit status: 0 done and true; 1 a finding (damage, divergence, degraded, outcome unknown, a failed check); 2 usage,
refused, or cannot run. An error is one line on stderr: the fault and the remedy, or with ``--json`` a problem document.
A closed pipe and Ctrl-C end a command without a message. After Ctrl-C the process ends by SIGINT or with status 130,
which a shell shows in the same way; ``read --follow`` ends with 0.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final

import click

from repl.cli.options import config_option, log_level_option
from vlsn.errors import BadArgument, VlsnLogError, said_of

OK: Final = 0
FINDING: Final = 1
REFUSED: Final = 2
INTERRUPTED: Final = 130

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "demo": ("demo", "Three nodes, real records, a node killed on the way, everything read back and audited."),
    "cluster": ("cluster", "Run a local cluster in the foreground."),
    "node": ("node", "Run one node."),
    "append": ("append", "Append a value, or the lines of a file or of stdin."),
    "read": ("read", "Print entries."),
    "check": ("check", "Look at disk, clock, port, versions and certificates, before and beside a node."),
    "debug-bundle": ("debug_bundle", "Collect status, metrics, events and logs in one zip, without secrets."),
    "status": ("status", "Ask every member for its status."),
    "group": ("group", "Show the members and settings, change or move one, raise the level, move mastership."),
    "consumer": ("consumer", "Show where consumers are, move or delete their positions."),
    "dest": ("dest", "Make destinations, look at them, move and drop them."),
    "page": ("page", "Print the pages of destinations in a node's directory."),
    "cdc": ("cdc", "Show the state of nodes' CDC consumers, pause, move and resume them."),
    "key": ("key", "Make or replace the key with which a group's members sign their calls."),
    "token": ("token", "Make, list, rotate and revoke the tokens of clients."),
    "checkpoint": ("admin", "Make nodes write a checkpoint at once."),
    "rotate": ("admin", "Make nodes begin a new segment at once."),
    "restore": ("admin", "Make one node give up its log and fetch another member's."),
    "clean": ("clean", "Remove the segments that retention wants removed, or show them."),
    "dump": ("dump", "Print one line a frame of a node's directory."),
    "verify": ("verify", "Check every byte of a node's directory."),
    "truncate": ("truncate", "Cut a stopped node's log after a VLSN, or lift its vote floor."),
    "index": ("index", "Print the VLSN index of a node's directory."),
    "audit": ("audit", "Prove with Spark that copies are equal."),
    "repair": ("repair", "Replace differing parts of a stopped node's copy, by an audit's report."),
    "export": ("export", "Write entries as Parquet or JSON files, each exactly once, by Spark."),
    "bench": ("bench", "Measure a cluster, or the local log alone."),
    "certs": ("certs", "Make certificates for TLS."),
    "context": ("context", "Name groups, so that commands need no --url."),
    "config": ("config", "Print the settings and where each comes from."),
    "explain": ("explain", "Explain an error: what happened, and what to do."),
}
_MODULES: Final = "repl.cli."


class _PipeClosed(Exception):
    """A ``BrokenPipeError`` under another type, because click ends the process for a ``BrokenPipeError``."""


class Commands(click.Group):
    """Loads a command's module only when the command is used."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _PipeClosed from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:  # click looks for near names among loaded commands only
            raise click.exceptions.NoSuchCommand(error.command_name, possibilities=_COMMANDS, ctx=ctx) from None

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(import_module(_MODULES + _COMMANDS[cmd_name][0]), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"vlsnlog {version('vlsnlog')}")
        ctx.exit()


def _print_completion(ctx: click.Context, _: click.Parameter, shell: str | None) -> None:
    if shell and not ctx.resilient_parsing:
        from click.shell_completion import get_completion_class

        kind = get_completion_class(shell)
        assert kind is not None
        click.echo(kind(vlsnlog, {}, "vlsnlog", "_VLSNLOG_COMPLETE").source())
        ctx.exit()


@click.group(cls=Commands, name="vlsnlog", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
@click.option(
    "--show-completion",
    type=click.Choice(["bash", "zsh", "fish"]),
    is_eager=True,
    expose_value=False,
    callback=_print_completion,
    help="Print the shell's completion script; source it.",
)
@config_option
@log_level_option
def vlsnlog() -> None:
    """A durable, replicated, ordered log whose every copy can be proven equal."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status. Raises nothing."""
    _open_standard_streams()
    words = sys.argv[1:] if arguments is None else arguments
    fail = partial(_fail, as_json="--json" in words[: words.index("--") if "--" in words else None])
    try:
        result: Any = vlsnlog.main(
            args=None if arguments is None else list(arguments), prog_name="vlsnlog", standalone_mode=False
        )
        sys.stdout.flush()
        return result if isinstance(result, int) else OK
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return REFUSED
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "vlsnlog"
        message = error.format_message().rstrip(".")
        return fail(command, f"{message}{' See' if message.endswith('?') else '; see'} `{command} --help`", REFUSED)
    except click.ClickException as error:
        return fail("vlsnlog", error.format_message(), REFUSED)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except (_PipeClosed, BrokenPipeError):
        return _close_quietly()
    except VlsnLogError as error:
        return fail("vlsnlog", str(error), status_of(error), error)
    except OSError as error:
        unwritten = "its output could not be written: " if error.errno in _NO_ROOM and not error.filename else ""
        return fail("vlsnlog", unwritten + said_of(error), REFUSED)
    except Exception as fault:  # the outermost handler of the process
        logging.getLogger("vlsnlog").debug("a fault", exc_info=fault)
        what = f"{type(fault).__name__}: {fault}"
        said = f"a fault of vlsnlog itself ({what}); --log-level debug shows where"
        return fail("vlsnlog", said, REFUSED, VlsnLogError(said))


def status_of(error: VlsnLogError) -> int:
    """Returns the exit status of a finding or of a refusal."""
    return FINDING if error.finding else REFUSED


def _fail(command: str, message: str, status: int, error: VlsnLogError | None = None, *, as_json: bool) -> int:
    line = f"{command}: {' '.join(message.split())}"
    if as_json:
        from repl.web import problem

        error = error or BadArgument(message)
        line = problem.document(error, exit_status=status, help=f"`vlsnlog explain {error.slug}`").decode()
    try:
        sys.stdout.flush()
    except OSError:
        _write_no_more()
    try:
        click.echo(line, err=True)
    except BrokenPipeError:
        _close_quietly()
    return status


def _open_standard_streams() -> None:
    """Opens the null device for each standard stream that is closed. If a stream stayed closed, the next opened file
    would get its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            stream = open(number, "r" if name == "stdin" else "w", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
    out = sys.stdout
    # with PYTHONUNBUFFERED stdout has no buffer, and a partial write would count as complete
    if isinstance(getattr(out, "buffer", None), io.FileIO):
        sys.stdout = open(out.fileno(), "w", 1, out.encoding, out.errors, closefd=False)  # noqa: SIM115


def _close_quietly() -> int:
    _write_no_more()
    return OK


def _write_no_more() -> None:
    """Redirects stdout to the null device, because the interpreter flushes stdout at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
