"""``python -m tests.bench WORK``: measurements that need this repository, each beside its aims and ceilings.

``vlsnlog bench`` measures what a user's own machine does.  These works prove what the documents say of this project:
peers, readers, destinations, CDC, Spark, and the local log.

Exit status 0 when every aim that was measured is reached, 1 when one is missed, 2 when it cannot run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator
from importlib import import_module

import msgspec
import uvloop

from tests.bench.report import Section, Sections, json_of, lines, missed
from vlsn.errors import VlsnLogError

WORKS = {
    "audit": ("audit_copies", "The audit of three copies, beside a loop of checksums in C."),
    "beside-scan": ("by_turns", "Writers, without and beside a full scan of every node, by turns."),
    "cdc": ("cdc", "CDC consumers: rate beside the plain tail's, delay, what ten cost, what bad ones do."),
    "destinations": ("destinations.parts", "Destinations: delivery beside the plain tail, paging, a backlog, peers."),
    "group-producers": ("group_producers", "Exactly-once producers through a kill, a restore and changes of master."),
    "index": ("index", "Lookups in a VLSN index, raw LMDB lookups beside them, and the memory that it takes."),
    "linearizable": ("by_turns", "Readers that have a majority asked, without and beside idle transactions, by turns."),
    "local": ("local_log", "Opening, verifying and reading a local log, beside plain reads."),
    "networks": ("by_turns", "Writers and a reader by a client's network and by a node's, by turns."),
    "page": ("page", "The live page: its first paint beside writers, and what an open one costs appends."),
    "peers": ("peers.works", "Three nodes beside etcd, PostgreSQL and Redis, as far as they are installed."),
    "positions": ("by_turns", "Transactions with a consumer's position, and without, plain batches, positions alone."),
    "producers": ("producers", "Exactly-once producers: a submission, a checkpoint, an open, a restore."),
    "readers": ("readers", "Waiting readers: what they cost a group, and how soon they have what comes."),
    "spark": ("spark", "Spark's reads beside a bare Python source of the same rows."),
    "start": ("start", "From a command's start to its first acknowledged append: one node, and clusters."),
    "transactions": ("by_turns", "Transactions of a batch each, and plain batches, by turns."),
    "without-numpy": ("without_numpy", "A client's reads without NumPy, beside the same reads with it."),
    "turns": ("turns", "Many requests at once: the loop's longest turn, and the longest gap between appends."),
}
"""The works: the module of each, and what it measures."""


def main() -> int:
    works = "\n".join(f"  {name:16} {said}" for name, (_, said) in WORKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=f"{__doc__}\nworks:\n{works}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("work", choices=WORKS, metavar="WORK")
    if len(sys.argv) < 2 or sys.argv[1] not in WORKS:
        parser.parse_args(sys.argv[1:2])
    work = sys.argv[1]
    name, said = WORKS[work]
    module = import_module(f"tests.bench.{name}")
    parser = argparse.ArgumentParser(prog=f"python -m tests.bench {work}", description=said)
    parser.add_argument("--json", action="store_true", help="one object a section, a line each")
    module.options(parser)
    options = parser.parse_args(sys.argv[2:], argparse.Namespace(work=work))
    as_json = options.json
    del options.json
    try:
        return _report(module.measured(options), as_json=as_json)
    except (VlsnLogError, RuntimeError, OSError) as error:
        print(f"bench: {type(error).__name__} {error}", file=sys.stderr)
        return 2


def _report(sections: Sections | AsyncIterator[Section], *, as_json: bool) -> int:
    failed: list[str] = []

    def show(section: Section) -> None:
        if as_json:
            print(msgspec.json.encode({section[0]: json_of(section[1])}).decode(), flush=True)
        else:
            print("\n".join(lines(section)), flush=True)
        failed.extend(missed(section))

    async def showing(sections: AsyncIterator[Section]) -> None:
        async for section in sections:
            show(section)

    if isinstance(sections, AsyncIterator):
        uvloop.run(showing(sections))
    else:
        for section in sections:
            show(section)
    for each in failed:
        print(f"MISSED: {each}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
