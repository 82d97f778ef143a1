"""Says whether this node is the master, and where the master is."""

from __future__ import annotations

from typing import Protocol

from repl.web import problem
from repl.web.types import Request, Response
from vlsn.errors import NotMaster


class Mastership(Protocol):
    """The calls that only the master answers."""

    def is_master(self) -> bool: ...

    def master_url(self) -> str | None:
        """Returns the master's URL, or ``None`` while no master is known."""
        ...


def redirect(mastership: Mastership, request: Request) -> Response:
    """Redirects the request to the master (307). Raises ``no-master`` if no master is known."""
    url = mastership.master_url()
    if url is None:
        raise NotMaster("this node is not the master and knows none; try again, or another node")
    document = problem.document(NotMaster(f"this node is not the master; it is {url}"), status=307)
    headers = {"Location": url.rstrip("/") + request.target, "Content-Type": problem.CONTENT_TYPE}
    return Response(307, headers, document)
