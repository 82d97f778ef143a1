"""A node as a process of its own: the real adapters, the signals, and how the process ends.

SIGTERM and SIGINT stop the node cleanly (status 0). A failed log ends it at once, with status 1. After a failed write
or sync the page cache cannot be trusted, so the next start reads the disk. A service manager (systemd with
``Type=notify``) receives a message when the node answers, and when it begins to stop.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import uvloop

from repl.auth.default_key import with_key
from repl.config import NodeConfig
from repl.net.children import ProcessChildren
from repl.net.network import AiohttpNetwork
from repl.net.service_manager import ServiceManager
from repl.net.tls import OFF, REQUIRE, Own, TlsFiles, Trust
from repl.node.capacity import check_files, connections_of, files_most, memory_bytes, readers_of
from repl.node.logging_format import log_to
from repl.node.node import Node
from vlsn.errors import VlsnLogError, WrongVersion, said_of
from vlsn.real.clock import SystemClock, SystemRandom
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.real.threads import LoopThreads
from vlsn.seams import Disk, Seams

SWITCH_INTERVAL_S = 0.0005
"""While the event loop computes, the writer's thread gets the interpreter within this many seconds (Python's default is
5 ms)."""
GC_THRESHOLD = 50_000
GIVE_BACK_S = 2.0
"""The seconds between two releases of freed memory to the system."""
TLS_FAULT = "Fatal error on SSL protocol"
CLOSED_BEFORE = "the handler is closed"
TLS_COST = 2
"""How many times as much memory a waiting reader takes with TLS: 29 to 36 KiB more."""
logger = logging.getLogger("vlsnlog")


def run_node(config: NodeConfig) -> int:
    """Runs the node until a signal or a fault. Returns the exit status."""
    log_to(sys.stderr, level=config.log_level, format=config.log_format)
    files = files_most()
    check_files(files)
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if now != most:  # each connection needs a descriptor, and a node that cannot open its next segment ends
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    memory = memory_bytes() // (1 if config.tls == OFF else TLS_COST)
    config = replace(config, readers_max=readers_of(config.readers_max, files=files, memory=memory))
    tune_interpreter()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(config, connections_max=connections_of(config.readers_max, files=files)))


def tune_interpreter() -> None:
    """Makes threads take turns sooner. Makes garbage collection rarer, and exempts all objects made so far. Finished
    work leaves no reference cycles behind."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 50, 50)


def give_back(loop: asyncio.AbstractEventLoop) -> None:
    """Releases freed memory to the system, now and then periodically. By itself glibc keeps free memory that is below
    any memory in use, and at the top twice as much as the largest buffer ever was. After a few large messages that is
    tens of megabytes. A release takes less than a millisecond, or a few after large messages. With another libc this
    does nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
        loop.call_later(GIVE_BACK_S, give_back, loop)


def report_fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Logs a fault that no task receives. One is not logged: uvloop answers the bytes of a peer on a TLS connection
    that this side has just closed (uvloop issue 506). The connection had ended already."""
    fault = context.get("exception")
    late = context.get("message") == TLS_FAULT and isinstance(fault, RuntimeError)
    if late and str(fault).endswith(CLOSED_BEFORE):
        logger.debug("%s: %s", TLS_FAULT, fault)
    else:
        loop.default_exception_handler(context)


def trust_of(config: NodeConfig, disk: Disk, event: Callable[..., None]) -> Trust | None:
    """Loads the node's certificate and authorities, if it has TLS. Raises ``BadArgument``."""
    if config.tls == OFF:
        return None
    files = TlsFiles(ca=str(config.tls_ca), cert=str(config.tls_cert), key=str(config.tls_key))
    return Trust(files, own=Own(config.group, config.name, urlsplit(config.url).hostname or ""), event=event, disk=disk)


async def _run(config: NodeConfig, *, connections_max: int) -> int:
    loop = asyncio.get_running_loop()
    manager = ServiceManager(os.environ)
    ended: asyncio.Future[int] = loop.create_future()

    def end(status: int) -> None:
        if not ended.done():
            ended.set_result(status)

    def fatal(error: BaseException) -> None:
        known = isinstance(error, VlsnLogError | OSError)
        logger.critical("%s ends: %s", config.name, said_of(error), exc_info=None if known else error)
        logging.shutdown()
        if node.log is not None and node.log.life.failure is not None:
            os._exit(1)  # nothing that a clean stop would write could be trusted
        end(2 if node.log is None or isinstance(error, WrongVersion) else 1)

    loop.set_exception_handler(report_fault)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, 0)
    seams = Seams(PosixDisk(), SystemClock(), SystemRandom(), LoopThreads(loop), LmdbStores())
    config = with_key(config, seams.disk, seams.random, os.environ)
    network = AiohttpNetwork(
        head_s=config.head_s,
        idle_s=config.idle_s,
        connections_max=connections_max,
        tls=trust_of(config, seams.disk, lambda name, **fields: node.member.event(name, **fields)),
        plain=config.tls != REQUIRE,
    )
    children = ProcessChildren(lambda name, line: logger.info("%s cdc %s: %s", config.name, name, line))
    node = Node(config, seams, network, children, on_fatal=fatal)
    await node.start()
    manager.ready(loop, lambda: f"{node.state}: {node.member.reason}" if node.member.reason else node.state)
    give_back(loop)
    status = await ended
    manager.stopping()
    await node.stop()
    return status
