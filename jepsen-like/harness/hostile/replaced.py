"""What is no file where a stopped replica's files were: it says so, with the path, and ends; and goes on when the file
is back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.hostile.files import END_S, Victim, make_directory, make_fifo, make_link
from harness.hostile.kind import Kind, Limits, Scene
from repl.net.network import AiohttpNetwork

CASES: list[tuple[str, Callable[[Path], None]]] = [
    ("segment", make_fifo),
    ("segment", make_directory),
    ("segment", make_link),
    ("node.id", make_fifo),
    ("LOCK", make_fifo),
    ("state/data.mdb", make_fifo),
    ("index/data.mdb", make_link),
]


async def _attack(scene: Scene) -> str:
    network = AiohttpNetwork()
    try:
        victim = Victim(scene, scene.cluster.node(scene.replicas[0]), network)
        await victim.roll()
        for name, make in CASES:
            await _replaced(victim, name, make)
    finally:
        await network.close()
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
    _attack,
    Limits(nodes_up=False),
)
