"""Every error says whether the call that met it may be made again, and whether that may help."""

from __future__ import annotations

import copy
import importlib
import inspect
import multiprocessing
import pickle
import pkgutil
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

import feeder
import repl
import replica
import vlsn
from vlsn.errors import VlsnLogError, by_slug

LOGGED = {
    "DuplicateForgotten": "it is in the log",
    "UnknownProducer": "what was sent before may be in the log",
    "OutcomeUnknown": "logged",
    "LogFailed": "the next open may find it",
    "ChannelClosed": "may have taken what was sent last",
    "IntegrityFault": "says nothing of what was appended",
    "Disagrees": "says nothing of what was appended",
    "RestoreWanted": "the log is given up",
    "_Stopped": "the first lines are in the log",
}
"""Errors that may leave something of the call in the log, and why."""
COMES_AGAIN = {
    *(
        "QueueFull",
        "NoSpace",
        "NoSegment",
        "NotMaster",
        "InsufficientReplicas",
        "GroupBusy",
        "Restoring",
        "Unreachable",
    ),
    *("CopyNeeded", "NobodyLeft", "ProducersMissing"),
}
"""The errors that pass by themselves."""


def all_errors() -> list[type[VlsnLogError]]:
    """Returns the whole tree, of every module that is ours."""
    for package in (vlsn, feeder, replica, repl):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)

    def below(kind: type[VlsnLogError]) -> list[type[VlsnLogError]]:
        return [each for child in kind.__subclasses__() for each in (child, *below(child))]

    ours = ("vlsn.", "feeder.", "replica.", "repl.")
    return [kind for kind in below(VlsnLogError) if kind.__module__.startswith(ours)]


def test_every_error_says_whether_a_retry_is_safe_as_its_text_does() -> None:
    errors = all_errors()
    assert len(errors) > 40
    above = {kind: [each for each in kind.__mro__ if each is not VlsnLogError] for kind in errors}
    silent = [kind for kind in errors if not any("retry_safe" in each.__dict__ for each in above[kind])]
    assert not silent, "these leave it to the root, which knows nothing"
    assert {kind.__name__ for kind in errors if not kind.retry_safe} == set(LOGGED)
    assert {kind.__name__ for kind in errors if kind.transient} == COMES_AGAIN
    assert not [kind.__name__ for kind in errors if kind.transient and not kind.retry_safe]


def made(kind: type[VlsnLogError]) -> VlsnLogError:
    """Makes an error with each of its attributes set to something."""
    some = {"str": "some", "int": 7, "bool": True}
    asked = [each for each in inspect.signature(kind.__init__).parameters.values() if each.name != "self"]
    plain = [each for each in asked if each.kind is each.POSITIONAL_OR_KEYWORD]
    named = {each.name: some[each.annotation] for each in asked if each.kind is each.KEYWORD_ONLY}
    error = kind(*(some[each.annotation] for each in plain) if plain else ("some",), **named)
    error.add_note("and a note")
    return error


def told(error: BaseException) -> tuple[object, ...]:
    return type(error), str(error), error.args, error.__dict__


def passed_on(error: VlsnLogError) -> None:
    raise error


@pytest.mark.parametrize(
    "again",
    [
        copy.copy,
        copy.deepcopy,
        *(lambda error, at=at: pickle.loads(pickle.dumps(error, at)) for at in range(pickle.HIGHEST_PROTOCOL + 1)),
    ],
)
def test_every_error_is_copied_and_pickled_with_its_attributes(again: Callable[[VlsnLogError], VlsnLogError]) -> None:
    kinds: list[type[VlsnLogError]] = [VlsnLogError, *all_errors()]
    errors = [made(kind) for kind in kinds]
    lost = [repr(error) for error in errors if told(again(error)) != told(error)]
    assert lost == []
    assert {"vlsn", "term", "found", "first", "matchpoint", "durable", "file", "refused", "reason"} <= {
        name for error in errors for name in error.__dict__
    }


def test_a_pool_of_processes_hands_on_every_error_and_lives() -> None:
    errors = [made(kind) for kind in all_errors()]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        raised = [each.exception() for each in [pool.submit(passed_on, error) for error in errors]]
        assert pool.submit(abs, -1).result() == 1
    for error, found in zip(errors, raised, strict=True):
        assert found is not None and told(found) == told(error)


def test_what_was_refused_before_it_was_kept_is_safe_to_send_again() -> None:
    from vlsn.errors import BadBody, TooLarge

    for kind in (TooLarge, BadBody):
        assert kind.retry_safe
        assert not kind.transient, "it will be refused again"


def test_what_comes_over_the_wire_says_the_same_on_both_sides() -> None:
    """A slug's class is what a client raises for it: no class that shares it may be less sure."""
    classes = by_slug()
    for kind in all_errors():
        if kind.__module__ == "vlsn.errors" and kind.slug != "internal":
            assert classes[kind.slug].retry_safe is kind.retry_safe, kind


@pytest.mark.parametrize("package", ["vlsn", "repl"])
def test_an_error_is_imported_from_the_package_that_raises_it(package: str) -> None:
    errors = [kind for kind in all_errors() if kind.__module__ == "vlsn.errors"]
    module = importlib.import_module(package)
    assert {kind.__name__ for kind in errors} <= set(module.__all__)
    assert [kind for kind in errors if getattr(module, kind.__name__) is not kind] == []
    assert module.VlsnLogError is VlsnLogError
    with pytest.raises(AttributeError):
        getattr(module, "NoSuchName")  # noqa: B009


def test_what_the_documents_import_is_there() -> None:
    """Every ``from vlsn… import`` and ``from repl… import`` that a document shows."""
    root = Path(__file__).parents[2]
    shown = [
        (line, match[1], match[2])
        for file in (root / "README.md", *sorted((root / "docs").rglob("*.md")))
        for line in file.read_text().splitlines()
        if (match := re.match(r"\s*from ((?:vlsn|repl)[\w.]*) import ([\w, ]+)", line))
    ]
    assert len(shown) >= 4
    for line, module, names in shown:
        for name in names.split(","):
            assert hasattr(importlib.import_module(module), name.strip()), line
