"""Replaces files of a stopped replica by things that are no files: it reports the path, and starts once they are
back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.hostile.files import END_S, Victim, make_directory, make_fifo, make_link, on_a_victim
from harness.hostile.kind import Kind, Limits

CASES: list[tuple[str, Callable[[Path], None]]] = [
    ("segment", make_fifo),
    ("segment", make_directory),
    ("segment", make_link),
    ("node.id", make_fifo),
    ("LOCK", make_fifo),
    ("state/data.mdb", make_fifo),
    ("index/data.mdb", make_link),
]


async def _each_replaced(victim: Victim) -> str:
    await victim.roll()
    for name, make in CASES:
        await _replaced(victim, name, make)
    return f"{len(CASES)} times a FIFO, a directory or a dangling link in place of a file of {victim.node.name}"


async def _replaced(victim: Victim, name: str, make: Callable[[Path], None]) -> None:
    node, found = victim.node, victim.scene.found
    what = f"{make.__name__} at {name}"
    if not await victim.stop():
        found.append(f"{what}: {node.name} did not end when it was told to")
    path = victim.sealed()[0][0] if name == "segment" else victim.directory / name
    aside = path.with_name(path.name + ".was")
    path.rename(aside)
    make(path)
    victim.start()
    if not await victim.until(lambda: not node.running, END_S):
        found.append(f"{what}: {node.name} did not end within {END_S:g} s")
        node.kill()
    elif node.ended != 2 or str(path) not in victim.said():
        found.append(f"{what}: {node.name} {node.how_it_ended()}: {victim.said()}")
    path.rmdir() if path.is_dir() else path.unlink()
    aside.rename(path)
    victim.start()
    if not await victim.follows():
        found.append(f"{what}: {node.name} does not follow when the file is back: {await victim.status()}")


KIND = Kind(
    "replaced",
    "FIFOs, directories and dangling links in place of a stopped replica's files",
    on_a_victim(_each_replaced),
    Limits(nodes_up=False),
)
