"""Contexts of the command line: names of groups, each with the URLs and credentials by which commands reach it.

They are in one TOML file of mode 0600, ``$XDG_CONFIG_HOME/vlsnlog/contexts.toml`` (``~/.config`` by default):

    current = "prod"
    [prod]
    url = "https://a:7701,https://b:7701"      what the user has named
    members = ["https://c:7701"]               members that have been found since
    token_file = "/home/me/prod.token"         also tls_ca, tls_cert, tls_key, group_key

A context's values are defaults: a flag, a variable and a config file are stronger. The file has names of credential
files, and no credentials.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from repl.config import toml_of
from repl.credentials.urls import split_urls
from vlsn.errors import BadArgument
from vlsn.ids import is_name, is_part

FILES: Final = ("token_file", "tls_ca", "tls_cert", "tls_key", "group_key")
MEMBERS_MAX: Final = 64
CONTEXTS_MAX: Final = 256
FILE_BYTES_MAX: Final = 1 << 20
CURRENT: Final = "current"


class Context(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How commands reach one group."""

    url: str
    members: tuple[str, ...] = ()
    token_file: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    group_key: str = ""

    @property
    def urls(self) -> list[str]:
        """The URLs that the user has named, then those of other members."""
        return list(dict.fromkeys([*split_urls(self.url), *self.members]))

    def defaults(self) -> dict[str, str]:
        """Returns the values of options that the context sets."""
        files = {name: getattr(self, name) for name in FILES}
        return {"url": ",".join(self.urls), **{name: path for name, path in files.items() if path}}


class Contexts:
    """The contexts of this user, as the file had them when it was read."""

    def __init__(self, path: Path, current: str, found: dict[str, Context]) -> None:
        self.path = path
        self.current = current
        self.found = found

    @classmethod
    def read(cls) -> Contexts:
        """Reads the file; a missing one has no contexts. Raises ``BadArgument``."""
        path = _path()
        try:
            with path.open("rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
            if len(data) > FILE_BYTES_MAX:
                raise BadArgument(f"{path}: has more than {FILE_BYTES_MAX} bytes")
            document = tomllib.loads(data.decode())
            current = document.pop(CURRENT, "")
            found = msgspec.convert(document, dict[str, Context])
            for each in found.values():
                split_urls(each.url)
        except FileNotFoundError:
            return cls(path, "", {})
        except (OSError, ValueError, RecursionError, BadArgument, msgspec.ValidationError) as error:
            said = error.strerror if isinstance(error, OSError) else error
            raise BadArgument(f"{path}: is no file of contexts: {said}; correct or remove it") from None
        return cls(path, current if isinstance(current, str) and current in found else "", found)

    def of(self, name: str) -> Context:
        """Returns a context. Raises ``BadArgument``."""
        if name not in self.found:
            known = f"there are {', '.join(self.found)}" if self.found else "there is none yet"
            raise BadArgument(f"context: no context {name[:64]!r}; {known}: `vlsnlog context add NAME --url URLS`")
        return self.found[name]

    def put(self, name: str, context: Context) -> None:
        """Adds or replaces a context; ``write`` makes it durable. Raises ``BadArgument``."""
        if not (is_name(name) and is_part(name)) or name == CURRENT:
            raise BadArgument(f"context: {name[:40]!r} is no name; use 1 to 32 of A-Z a-z 0-9 . _ -")
        if name not in self.found and len(self.found) >= CONTEXTS_MAX:
            raise BadArgument(f"context: there are {CONTEXTS_MAX} already; remove one")
        self.found[name] = context

    def write(self) -> None:
        """Replaces the file, which belongs to its owner alone. Raises ``BadArgument``."""
        lines = [f"{CURRENT} = {toml_of(self.current)}"] if self.current else []
        for name, context in self.found.items():
            lines += ["", f"[{toml_of(name)}]"]
            values: Mapping[str, Any] = msgspec.to_builtins(context)
            lines += [f"{key} = {toml_of(value)}" for key, value in values.items()]
        new = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(number, "w") as file:
                file.write("\n".join(lines).lstrip("\n") + "\n")
            new.rename(self.path)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise BadArgument(f"{self.path}: cannot be written: {error.strerror}") from None


def learned(name: str, nodes: Sequence[Mapping[str, Any]]) -> None:
    """Stores the members that were found with the context ``name``: a later command finds the group by them, also if
    all nodes that the user named are gone. ``nodes`` are the nodes of ``vlsnlog status``. A member that answers at a
    URL that the user named needs no other one. A file that cannot be written is left as it is."""
    try:
        contexts = Contexts.read()
        context = contexts.found.get(name)
        if context is None:
            return
        named = split_urls(context.url)
        reached = {node["node"] for node in nodes if node["url"] in named and "members" in node}
        members = {str(each["name"]): str(each["url"]) for node in nodes for each in node.get("members", ())}
        others = [url for member, url in sorted(members.items()) if member not in reached and url not in named]
        if members and tuple(others[:MEMBERS_MAX]) != context.members:
            contexts.put(name, msgspec.structs.replace(context, members=tuple(others[:MEMBERS_MAX])))
            contexts.write()
    except BadArgument:
        pass


def _path() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or ""
    base = Path(home) if home.startswith("/") else Path("~/.config").expanduser()
    return base / "vlsnlog" / "contexts.toml"
