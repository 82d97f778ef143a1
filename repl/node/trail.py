"""The trail of orders and refusals: one line each in ``DIR/admin.jsonl``, and an event of the node.

    {"time": 1790…, "actor": {"user": {"uid": "key:k3f9"}}, "src_endpoint": {"ip": "127.0.0.1", "port": 40112},
     "api": {"operation": "POST /v1/admin/rotate"}, "status_code": "200", …}

1. Each call of a route with the role ``admin`` has a line, with its result. At most ``REFUSALS_A_SECOND`` calls that
   were refused because of their sender have a line. The next line counts the others.
2. The fields have the names of OCSF's class API Activity (6003). Bodies, headers, and what looks like a token are never
   among them.
3. Lines are written and synced by a worker, some time after the answer. A line that cannot be written is lost, and the
   event ``audit.lost`` says so; its call is answered all the same.
4. A file has at most ``FILE_BYTES_MAX``; then it becomes ``admin.1.jsonl``, and so on. ``FILES_MAX`` are kept.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from repl.group.member import Member
from repl.offload import Offload
from repl.web import problem
from repl.web.types import Request
from vlsn.errors import Forbidden, StaleSession, VlsnLogError, said_of
from vlsn.limits import MIB
from vlsn.seams import Disk, File

FILE_NAME: Final = "admin.jsonl"
FILES_MAX: Final = 10
FILE_BYTES_MAX: Final = MIB
REFUSALS_A_SECOND: Final = 10
LINES_MAX: Final = 1_000
"""The most lines that wait to be written."""
LINGER_S: Final = 0.2
"""The seconds for which lines are gathered."""
TEXT_MAX: Final = 200
_TOKEN: Final = re.compile(r"vlt_.*", re.DOTALL)
_API_ACTIVITY: Final = {
    "class_uid": 6003,
    "category_uid": 6,
    "activity_id": 99,
    "type_uid": 600399,
    "metadata": {"version": "1.3.0", "product": {"name": "vlsnlog"}},
}


class Trail:
    """The trail of one node. On the event loop only."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._file = TrailFile(member.seams.disk, str(member.config.dir))
        self._lines: list[bytes] = []
        self._wanted = asyncio.Event()
        self._second = 0
        self._refusals = 0
        self._unsaid = 0

    def called(self, request: Request, status: int) -> None:
        """Notes an order that was answered with ``status``."""
        who = request.grant.who
        self._member.event("admin.called", **_said(request, who, status))
        self._note(request, who, status, "")

    def refused(self, request: Request, error: VlsnLogError) -> None:
        """Notes a call that was refused because of its sender."""
        if isinstance(error, StaleSession):  # the first call of each command
            return
        second = self._member.seams.clock.wall_us() // 1_000_000
        if second != self._second:
            self._second, self._refusals = second, 0
        self._refusals += 1
        if self._refusals > REFUSALS_A_SECOND:
            self._unsaid += 1
            return
        who = request.grant.who if isinstance(error, Forbidden) else ""
        status = problem.status_of(error.slug)
        self._member.event("admin.refused", **_said(request, who, status), type=error.slug)
        self._note(request, who, status, error.slug)

    def _note(self, request: Request, who: str, status: int, type: str) -> None:
        if len(self._lines) >= LINES_MAX:
            self._lost(f"more than {LINES_MAX} lines wait to be written")
            return
        method, path, query = request.method[:20], _shown(request.path), _shown(request.query_text)
        host, _, port = request.remote.rpartition(":")
        done = status < 400
        line: dict[str, Any] = {
            "time": self._member.seams.clock.wall_us() // 1_000,
            **_API_ACTIVITY,
            "severity_id": 1 if done else 2,
            "status_id": 1 if done else 2,
            "status_code": str(status),
            **({"status_detail": type} if type else {}),
            "device": {"name": self._member.name},
            "actor": {"user": {"uid": who}},
            "src_endpoint": {"ip": host.strip("[]"), **({"port": int(port)} if port.isdigit() else {})},
            "api": {"operation": f"{method} {path}"},
            "http_request": {"http_method": method, "url": {"path": path, "query_string": query}},
        }
        if self._unsaid:
            line["unmapped"] = {"refusals_not_shown": self._unsaid}
            self._unsaid = 0
        self._lines.append(msgspec.json.encode(line) + b"\n")
        self._wanted.set()

    async def run(self) -> None:
        """Writes lines until it is cancelled; then it hands those that wait to the worker."""
        offload = Offload(self._member.workers["scrub"])
        lines: list[bytes] = []
        try:
            while True:
                await self._wanted.wait()
                await asyncio.sleep(LINGER_S)
                self._wanted.clear()
                lines, self._lines = self._lines, []
                try:
                    await offload(partial(self._file.append, lines))
                except (OSError, VlsnLogError) as error:
                    self._lost(said_of(error))
        finally:
            if self._lines:
                offload(partial(self._file.append, self._lines)).add_done_callback(_forget)

    def _lost(self, why: str) -> None:
        self._member.event("audit.lost", why=why)


class TrailFile:
    """The files of a trail. On a worker only."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._file: File | None = None
        self._size = 0

    def append(self, lines: list[bytes]) -> None:
        """Appends whole lines, durable on return. Raises ``OSError``; then none, some or all of them are lost."""
        try:
            for line in lines:
                if self._file is not None and self._size + len(line) > FILE_BYTES_MAX:
                    self._rotate()
                file = self._open()
                file.write(self._size, [line])
                self._size += len(line)
            if self._file is not None:
                self._file.sync()
        except BaseException:
            self._close()
            raise

    def _open(self) -> File:
        if self._file is None:
            path = self._path(0)
            there = self._disk.exists(path)
            file = self._file = self._disk.open(path, write=True, create=not there, private=not there)
            if not there:
                self._disk.sync_directory(self._directory)
            self._size = file.size()
            if self._size and file.read(self._size - 1, 1) != b"\n":  # a line whose writing was cut short
                file.write(self._size, [b"\n"])
                self._size += 1
        return self._file

    def _rotate(self) -> None:
        assert self._file is not None
        self._file.sync()
        self._close()
        if self._disk.exists(last := self._path(FILES_MAX - 1)):
            self._disk.remove(last)
        for number in range(FILES_MAX - 2, -1, -1):
            if self._disk.exists(self._path(number)):
                self._disk.rename(self._path(number), self._path(number + 1))

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _path(self, number: int) -> str:
        name = FILE_NAME if number == 0 else FILE_NAME.replace(".", f".{number}.")
        return f"{self._directory}/{name}"


def _said(request: Request, who: str, status: int) -> dict[str, Any]:
    """Returns the fields of an event."""
    call = f"{request.method[:20]} {_shown(request.path)}"
    return {"who": who, "remote": request.remote.rpartition(":")[0], "call": call, "status": status}


def _shown(text: str) -> str:
    """Returns a part of a target without anything that looks like a token."""
    return _TOKEN.sub("vlt_…", unquote(text, errors="replace"))[:TEXT_MAX]


def _forget(written: asyncio.Future[None]) -> None:
    if not written.cancelled():
        written.exception()
