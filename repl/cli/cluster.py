"""``vlsnlog cluster``: runs a local cluster in the foreground, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import shlex
import signal
from pathlib import Path
from typing import Any

import click

from repl.cli.options import Command, config_path
from repl.cluster import OF_ONE_NODE, Cluster, Node, NodeEnded, ending_with, prepare
from repl.config import NODE_SETTINGS, read_file

WATCH_S = 0.2


@click.command(cls=Command)
@click.option("--nodes", type=click.IntRange(1, 64), help="Number of nodes; default: 3, or as many as DIR has.")
@click.option("--dir", "directory", required=True, type=click.Path(path_type=Path, file_okay=False), help="Data.")
@click.option("--base-port", type=click.IntRange(1, 65_535), default=7701, show_default=True, help="Port of n1.")
@click.option("--group", help="Name of a new group.")
def cluster(nodes: int | None, directory: Path, base_port: int, group: str | None) -> int:
    """Run a local cluster in the foreground: node I is nI, with data in DIR/nI, on port BASE_PORT + I - 1.

    A node's settings in the --config file (segment_bytes, retention_bytes …) are copied to the node.toml of each new
    node.
    """
    return asyncio.run(_run(directory, nodes, base_port, group, _settings(config_path())))


def _settings(path: Path | None) -> dict[str, Any]:
    """Reads from the file the settings that all nodes share."""
    document = read_file(path) if path is not None else {}
    return {
        name: value for name, value in document.items() if name in NODE_SETTINGS and name.upper() not in OF_ONE_NODE
    }


async def _run(directory: Path, nodes: int | None, base_port: int, group: str | None, settings: dict[str, Any]) -> int:
    from repl.net.network import AiohttpNetwork

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    network = AiohttpNetwork()
    try:
        made = prepare(directory, network, nodes=nodes, base_port=base_port, group=group, settings=settings)
        with ending_with(made):
            running = asyncio.create_task(_keep(made))
            stopping = asyncio.create_task(stopped.wait())
            await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                stopping.cancel()
                return await running
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await made.stop()
            return 0
    finally:
        await network.close()


async def _keep(made: Cluster) -> int:
    """Starts the nodes and reports each node that ends. Returns only if the cluster cannot start."""
    for node in made.nodes:
        node.start()
    lost = [node for node in made.nodes if not await _say_ready(made, node)]  # nodes are reported in order of names
    if len(lost) * 2 >= len(made.nodes):
        click.echo(
            "vlsnlog cluster: no majority of the nodes is left; correct the errors above and start again", err=True
        )
        await made.stop()
        return 2
    serving = asyncio.create_task(_say_serving(made))
    try:
        await _watch(made, lost)
    finally:
        serving.cancel()
    return 0


async def _say_ready(made: Cluster, node: Node) -> bool:
    try:
        await made.answering(node)
    except NodeEnded as error:
        click.echo(f"vlsnlog cluster: {error}", err=True)
        return False
    click.echo(f"ready {node.name} {node.url}")
    return True


async def _say_serving(made: Cluster) -> None:
    await made.serving()
    click.echo("ready cluster")


async def _watch(made: Cluster, lost: list[Node]) -> None:
    while True:
        for node in made.nodes:
            if node not in lost and node.ended is not None:
                lost.append(node)
                click.echo(
                    f"vlsnlog cluster: {node.name} {node.how_it_ended()} and is left so; start it with "
                    f"`vlsnlog node --config {shlex.quote(str(node.config_path))}`",
                    err=True,
                )
        await asyncio.sleep(WATCH_S)
