"""Calls a real node as its OpenAPI document allows, and as it forbids (schemathesis): ``make fuzz-http``.

Every answer is held against the document (``declared.check``): no undeclared status, content type or field, no fault of
the node, no slug that the call does not list. An answer must come within ``ANSWER_S``.

    python -m tests.reference.fuzz [--examples 200] [--seed 1]      on a group of three nodes of its own
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import negative_data_rejection

from repl.web.types import Headers
from tests.reference.declared import check

ANSWER_S = 20.0
WAIT_S_MAX = 0.05
"""The longest ``wait`` that is sent: the calls are to be many."""
WRONG_ALONE = {
    "POST /v1/admin/group": "a right one moves the members",
    "POST /v1/admin/restore": "a right one discards the log",
    "POST /v1/admin/transfer": "the next calls would find no master",
    "GET /v1/tail": "a right one has no end",
}
"""Operations of which wrong calls alone are made."""
TOO_LARGE = 413
"""A refusal, too, which schemathesis does not count as one."""
LAX = ("/", "/healthz", "/readyz", "/metrics")


def modes_of(name: str) -> tuple[GenerationMode, ...]:
    """Returns the kinds of calls that are made of an operation."""
    return (GenerationMode.NEGATIVE,) if name in WRONG_ALONE else (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


def calls_of(url: str) -> Iterator[tuple[str, Any]]:
    """Reads the document of a node. Yields each operation by ``METHOD PATH``."""
    found = schemathesis.openapi.from_dict(requests.get(f"{url}/v1/openapi.json", timeout=ANSWER_S).json())
    for result in found.get_all_operations():
        assert isinstance(result, Ok), result
        operation = result.ok()
        yield f"{operation.method.upper()} {operation.path}", operation


def fuzz(url: str, operation: Any, mode: GenerationMode, *, examples: int, at: int) -> None:
    """Makes calls of one operation. ``at`` is the seed. Raises ``AssertionError`` for an answer that does not match."""

    @seed(at)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def calls(case: Case[Any]) -> None:
        if isinstance(case.query, dict) and "wait" in case.query:
            case.query["wait"] = _short(case.query["wait"])
        try:
            response = case.call(base_url=url, timeout=ANSWER_S, allow_redirects=False)
        except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL, UnicodeEncodeError):
            return  # the caller's own library refuses it
        path = response.request.path_url.partition("?")[0]
        assert response.status_code != 500, f"{case.as_curl_command()}: {response.content[:300]!r}"
        headers = Headers({name: values[0] for name, values in response.headers.items()})
        check(case.method.upper(), path, response.status_code, headers, response.content)
        body = getattr(response.request, "body", None) or b"x"
        blank = not body.strip()  # is no body, which some calls may leave out
        checked = not blank and "/v1/peer/" not in path and path not in LAX and response.status_code != TOO_LARGE
        if mode is GenerationMode.NEGATIVE and checked:
            case.validate_response(response, checks=[negative_data_rejection])

    try:
        calls()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE  # a call without parameters has no wrong ones


def _short(wait: Any) -> Any:
    try:
        return min(float(wait), WAIT_S_MAX) if float(wait) >= 0 else wait
    except (TypeError, ValueError):
        return wait


def main() -> None:
    from tests.e2e.group import Group

    options = argparse.ArgumentParser()
    options.add_argument("--examples", type=int, default=200)
    options.add_argument("--seed", type=int, default=1)
    asked = options.parse_args()
    failed = []
    with tempfile.TemporaryDirectory() as place:
        group = Group(Path(place))
        try:
            group.start()
            for name, operation in calls_of(group.master):
                for mode in modes_of(name):
                    try:
                        fuzz(group.master, operation, mode, examples=asked.examples, at=asked.seed)
                        print(f"ok      {name} {mode.value}", flush=True)
                    except (Exception, FailureGroup) as error:  # each operation is reported
                        failed.append(name)
                        print(f"FAILED  {name} {mode.value}: {str(error)[:1500]}", flush=True)
            if faults := group.faults():
                failed.append("the nodes' logs")
                print(*faults, sep="\n")
        finally:
            group.end()
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
