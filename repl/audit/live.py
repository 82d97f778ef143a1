"""A live node as a source: reads its segments over HTTP, up to their synced length.

    GET /v1/status       group, node, range, DTVLSN: asked first, so that the segments listed afterwards cover the range
    GET /v1/segments     number and synced end of each file
    GET /v1/segments/N   in ranges of 8 MiB; each range is retried separately (tenacity)

A checksum guards every frame, so the transport needs no checksum. A node does not serve sidecars (index files of
segments), so sidecars are not checked.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from http.client import HTTPException
from math import inf
from time import monotonic
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

from tenacity import (
    RetryCallState,
    RetryError,
    retry,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_random_exponential,
)

from repl.audit.findings import Finding
from repl.audit.plan import Indexed, Part, Survey
from repl.audit.report import Sizes
from repl.audit.source import Gone, Unreadable
from repl.credentials.bearer import HEADER, Bearer
from repl.tls_files import NO_FILES, TlsFiles, calling, lasts, or_environment, said_of_tls, stamp_of, tls_failure
from vlsn.errors import BadBody, WrongGroup, said_of
from vlsn.format import scan
from vlsn.format.own_entries import FOUNDING_FIELD
from vlsn.format.records import RollbackStart
from vlsn.format.segment import FIRST_FRAME, HEADER_PAGE, SegmentHeader, SegmentState, segment_name
from vlsn.ids import Lsn
from vlsn.real.disk import PosixDisk
from vlsn.seams import Buffer
from vlsn.verify.inspection import Rule
from vlsn.verify.segment_chain import rollbacks_in

PIECE_BYTES: Final = 8 << 20
TIMEOUT_S: Final = 30.0
TRY_S_MIN: Final = 0.1
"""The shortest timeout of a request, in seconds, even of the last try."""
BUSY_S: Final = 300.0
"""A node that answers 429 is asked again for this many seconds. A cluster may run more tasks than a node serves at
once."""
DOCUMENT_BYTES_MAX: Final = 4 << 10
"""The most bytes that are read of a problem document."""


@cache
def _opener(files: TlsFiles, stamp: object) -> OpenerDirector:
    """Makes what calls nodes: directly, not through a proxy. ``stamp`` changes with the files."""
    context = calling(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), files, _DISK)
    return build_opener(ProxyHandler({}), HTTPSHandler(context=context))


def _opening(url: str, tls: TlsFiles) -> OpenerDirector:
    """Returns what calls ``url``. Raises ``BadArgument`` if the files of TLS cannot be used."""
    if not url.startswith("https:"):
        return _PLAIN
    files = or_environment(tls)
    return _opener(files, stamp_of(files, _DISK))


_DISK: Final = PosixDisk()
_PLAIN: Final = build_opener(ProxyHandler({}))


_GIVEN_UP: Final[set[str]] = set()
"""Nodes that have not answered this process. A node in this set is called without retries, until it answers."""


class _Again(Exception):
    """A request failed, but may succeed if it is sent again."""


class _Busy(_Again):
    """The node serves as many readers as it may. The request is repeated for up to ``BUSY_S`` seconds."""


@dataclass(frozen=True, slots=True)
class LiveSource:
    text: str
    founding: str = ""
    """The identity of the expected log, or "" for any log; a node with another log refuses the request."""
    give_up_s: float = 0.0
    """Seconds after which a node that does not answer is given up; 0: after six tries, without a time limit."""
    tls: TlsFiles = NO_FILES
    """The files for calls of https; those of the environment take the place of empty ones."""
    token_file: str = ""
    """The file with the client's token, where the source is read; empty: the token of the environment."""

    @property
    def path(self) -> str:
        return self.text

    @property
    def near(self) -> bool:
        return False

    def survey(self, index: int) -> Survey:
        status = self._json("/v1/status")
        listing = self._json("/v1/segments")
        findings: list[Finding] = []
        try:
            ends = self._ends(listing)
            group, node, dtvlsn = str(status["group"]), str(status["node"]), int(status["dtvlsn"])
            first, last = int(status["range"]["first"]), int(status["range"]["last_sync"])
        except (KeyError, TypeError, ValueError) as error:
            raise Unreadable(f"{self.text}: status or segments lack {error}; is it a vlsnlog node?") from error
        headers: dict[int, SegmentHeader | None] = {}
        parts = tuple(self._parts(index, ends, findings, headers))
        newest = next((each for _, each in sorted(headers.items(), reverse=True) if each is not None), None)
        found = tuple(findings)
        return Survey(
            group=group,
            node=node,
            live=True,
            parts=parts,
            first=first,
            last=last,
            dtvlsn=dtvlsn,
            findings=found,
            incarnation=f"{newest.incarnation:016x}" if newest is not None else "",
            founding=str(status.get("founding", "")),
            sizes=Sizes(segments=sum(part.end for part in parts)),
        )

    def group(self) -> tuple[str, str]:
        """Returns the name of the node's group, and the identity of the node's log. Raises ``Unreadable``."""
        status = self._json("/v1/status")
        try:
            return str(status["group"]), str(status.get("founding", ""))
        except KeyError as error:
            raise Unreadable(f"{self.text}: status lacks {error}; is it a vlsnlog node?") from error

    def dtvlsn(self) -> int:
        """Returns the last VLSN that the node knows to be durable. Raises ``Unreadable``."""
        try:
            return int(self._json("/v1/status")["dtvlsn"])
        except (KeyError, TypeError, ValueError) as error:
            raise Unreadable(f"{self.text}: status lacks {error}; is it a vlsnlog node?") from error

    def read(self, part: Part, start: int, end: int, into: bytearray | None = None) -> Buffer:
        buf = into if into is not None and len(into) >= end - start else bytearray(end - start)
        view = memoryview(buf)[: end - start]
        for at in range(start, end, PIECE_BYTES):
            stop = min(end, at + PIECE_BYTES)
            self._get(f"/v1/segments/{part.number}", at, stop, view[at - start : stop - start])
        return view

    def fill(self, part: Part, spans: Sequence[tuple[int, int]], into: bytearray) -> None:
        raise AssertionError("a node is read by large pieces")

    def rollbacks(self, from_number: int) -> list[tuple[Lsn, RollbackStart]]:
        ends = self._ends(self._json("/v1/segments"))
        parts = [part for part in self._parts(0, ends, [], {}) if part.number >= from_number]
        found = (rollbacks_in(self.read(part, 0, part.end), part.number, part.salt) for part in parts)
        return [each for records in found for each in records]

    def sidecar(self, part: Part) -> bytes | None:
        return None

    def indexed(self, parts: Sequence[Part]) -> dict[int, Indexed]:
        return {}

    def _parts(
        self, index: int, ends: dict[int, int], findings: list[Finding], headers: dict[int, SegmentHeader | None]
    ) -> Iterator[Part]:
        """Yields the segments. Adds faults to ``findings``, and the header of each segment to ``headers``."""
        for number in sorted(ends):
            page = self._get(f"/v1/segments/{number}", 0, HEADER_PAGE)
            try:
                headers[number] = SegmentHeader.decode(page)
            except BadBody as error:
                headers[number] = None
                file = segment_name(number)
                findings.append(
                    Finding(rule=Rule.SEGMENT_HEADER, source=self.text, file=file, offset=0, vlsn=0, detail=str(error))
                )
        follows = {each.prev_number: each.prev_end for each in headers.values() if each is not None}
        for number, header in headers.items():
            if header is not None and header.state is not SegmentState.ACTIVE:
                continue
            end = follows.get(number, ends[number])
            yield Part(
                source=index,
                number=number,
                file=segment_name(number),
                salt=header.salt if header is not None else self._salt(number, end),
                end=end,
                stated=end,
                prev_number=header.prev_number if header is not None else 0,
                prev_last_vlsn=header.prev_last_vlsn if header is not None else 0,
                readable=header is not None,
            )

    def _salt(self, number: int, end: int) -> int:
        """Reads the salt of the segment from its frames. A segment without a frame has the salt 0, which fits no
        frame."""
        return scan.salt_of(self._get(f"/v1/segments/{number}", 0, end), 0, FIRST_FRAME) or 0

    def _ends(self, listing: dict[str, Any]) -> dict[int, int]:
        try:
            return {int(each["number"]): int(each["end"]) for each in listing["segments"]}
        except (KeyError, TypeError, ValueError) as error:
            raise Unreadable(f"{self.text}: segments lack {error}; is it a vlsnlog node?") from error

    def _json(self, path: str) -> dict[str, Any]:
        try:
            answer = json.loads(self._get(path))
        except ValueError as error:
            raise Unreadable(f"{self.text}{path} answered no JSON; is it a vlsnlog node?") from error
        if not isinstance(answer, dict):
            raise Unreadable(f"{self.text}{path} answered no JSON object; is it a vlsnlog node?")
        return answer

    def _get(self, path: str, start: int = 0, end: int = 0, into: memoryview | None = None) -> bytes:
        """Fetches a body. With a range, the body has exactly ``end - start`` bytes. With ``into``, the bytes are
        written into that memory, and the result is empty. Raises ``Unreadable``, ``WrongGroup``."""
        deadline = monotonic() + (self.give_up_s or inf)
        fetch: Callable[..., bytes] = _fetch
        if self.text in _GIVEN_UP:
            fetch = _fetch_once
        elif self.give_up_s:
            fetch = _fetch.retry_with(stop=partial(_is_late, deadline))
        try:
            body = fetch(self.text + path, start, end, into, self, deadline)
        except (RetryError, _Again) as error:
            _GIVEN_UP.add(self.text)
            last = error.last_attempt.exception() if isinstance(error, RetryError) else error
            raise Gone(f"{self.text}: {last}; is the node up?") from error
        _GIVEN_UP.discard(self.text)
        return body


def _given_up(state: RetryCallState) -> bool:
    """Returns whether to give a node up: a busy node after ``BUSY_S`` seconds, any other node after six tries."""
    return bool(stop_after_delay(BUSY_S)(state) if _is_busy(state) else stop_after_attempt(6)(state))


def _is_late(deadline: float, state: RetryCallState) -> bool:
    """Returns whether the next try would be too late. A busy node is called for ``BUSY_S`` seconds, any other node
    until ``deadline``."""
    return bool(stop_after_delay(BUSY_S)(state) if _is_busy(state) else monotonic() + state.upcoming_sleep >= deadline)


def _is_busy(state: RetryCallState) -> bool:
    return state.outcome is not None and isinstance(state.outcome.exception(), _Busy)


@retry(retry=retry_if_exception_type(_Again), wait=wait_random_exponential(0.1, max=3), stop=_given_up)
def _fetch(url: str, start: int, end: int, into: memoryview | None, source: LiveSource, deadline: float) -> bytes:
    return _fetch_once(url, start, end, into, source, deadline)


def _fetch_once(url: str, start: int, end: int, into: memoryview | None, source: LiveSource, deadline: float) -> bytes:
    timeout_s = min(TIMEOUT_S, max(deadline - monotonic(), TRY_S_MIN))
    headers = {"Range": f"bytes={start}-{end - 1}"} if end else {}
    founding = source.founding
    request = Request(url, headers=headers | ({FOUNDING_FIELD: founding} if founding else {}))
    bearer = Bearer.of(token_file=source.token_file or None)  # read for each request: it may be a new one
    if bearer is not None:
        request.add_unredirected_header(HEADER, bearer.header(url))
    try:
        with _opening(url, source.tls).open(request, timeout=timeout_s) as answer:
            got = 0
            if into is not None:
                while got < len(into) and (count := answer.readinto(into[got:])):
                    got += count
            body: bytes = answer.read()  # empty if the piece was read into ``into`` above
            got += len(body)
            whole = not end or (answer.status == 206 and got == end - start)
    except HTTPError as error:
        with error:
            said = error.read(DOCUMENT_BYTES_MAX).decode(errors="replace")
        reason = f"{url} answered {error.code}: {said[:500]}"
        if error.code == 429:
            raise _Busy(reason) from None
        if error.code in (500, 502, 503, 504):
            raise _Again(reason) from None
        if founding and error.code == 409:
            raise WrongGroup(f"{url}: {_detail(said)}") from None
        raise Unreadable(reason) from None
    except (OSError, HTTPException) as error:
        failure = tls_failure(error)
        why = said_of_tls(failure) if failure is not None else said_of(getattr(error, "reason", error))
        if lasts(failure):
            raise Unreadable(f"{url}: {why}") from None
        raise _Again(f"{url}: {why}") from None
    if not whole:
        raise _Again(f"{url} gave {got} bytes of {end - start}")
    return body


def _detail(document: str) -> str:
    """Returns the text in a problem document that describes the problem."""
    try:
        return str(json.loads(document)["detail"])
    except (ValueError, TypeError, KeyError):
        return document[:500]
