"""The rules of every step of a simulated group, checked against its nodes' actions and its disks.

The nodes of a simulation (``group.SimNode``) report their actions; the watch reads their disks itself:

    one master in a term                                 at each election
    a majority of its listed members has voted for it    the same
        in that term; a name that passes to another
        incarnation has no vote
    a master has what was durable in lower terms         the same (Raft §5.4.3)
    a vote is for a log at or past all that the voter    at each vote sent (Raft §5.4.1)
        has received, synced or on its way to the disk
    one vote for each (incarnation, term), on the        at each sync of a node file, at each vote sent
        medium before it is sent; terms never fall
    one content for each (term, first VLSN)              at each block handed to a writer
    VLSNs contiguous                                     the same
    a block that a node calls synced is on its medium    at each sync
    a durable block is on the media of a majority of     whenever a DTVLSN rises
        the incarnations that the log lists, and of
        both lists while a name passes to another
    a master makes entries durable only by its own term  the same (Raft §5.4.2)
    equal prefixes up to the common DTVLSN               the same: there is one list of durable blocks
    a DTVLSN never falls within a process                the same
    nothing durable is rolled back, or gone after        at each rollback, at each open
        a restart
    synced bytes are not cut                             at each open
    index and term runs agree with the log               the same
    a value is in the log once                           at each block that becomes durable
    a transaction is in one block, its COMMIT last       the same
    no page that a reader receives ends within one       at each page
    small state is the sum of the durable COMMITs        whenever a DTVLSN rises
    unacknowledged messages of a destination are in a    at each removal of a segment or page, and
        node's log, or in valid pages                        every half second (``destinations``)
    no node whose disk is sound is DAMAGED or HALTED     at each change of a state
    no answer reports a bug of the node                  at each answer

Each rule is checked by one part: ``terms`` (masters, votes, node files), ``copies`` (the blocks that each node
receives, syncs and rolls back), ``opening``, ``ledger`` (all that was called durable).  The first violation is kept
(``verdict``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.sim.copies import Copy, Writing
from tests.sim.destinations import Destinations
from tests.sim.ledger import Ledger
from tests.sim.opening import Opening
from tests.sim.terms import Terms
from tests.sim.transactions import Transactions
from tests.sim.verdict import Verdict

if TYPE_CHECKING:
    from tests.sim.group import SimGroup, SimNode

UNFIT = "the VLSN index"
"""The beginning of an open's note that the index does not fit; on a sound disk it always fits."""


class Watch(Verdict):
    def __init__(self, group: SimGroup, say: Callable[[str], None]) -> None:
        super().__init__(say)
        self.group = group
        self.copies: dict[str, Copy] = {}
        self.flips: dict[str, dict[int, int]] = {}
        """The former value of each byte that rot changed, by path and offset."""
        self.rotten: set[str] = set()
        """The nodes whose disks may rot."""
        self.overmarked: set[str] = set()
        """The nodes whose logs an operator has cut."""
        self.leads: list[str] = []
        self.restored = 0
        self.terms, self.ledger, self.transactions = Terms(self), Ledger(self), Transactions(self)
        self.destinations = Destinations(self)
        self.writing, self.opening = Writing(self), Opening(self)
        self.durable, self.values, self.groups = self.ledger.durable, self.ledger.values, self.ledger.groups

    @property
    def durable_last(self) -> int:
        return self.ledger.last

    def look_at(self, name: str) -> None:
        """Connects to a machine of that name, or to its new disk."""
        self.writing.look_at(name)
        self.copies.setdefault(name, Copy())

    # Reports of a node.

    def event(self, node: SimNode, name: str, fields: dict[str, Any]) -> None:
        if name == "elected":
            self.terms.elected(node, int(fields["term"]))
        elif name == "leads":
            self.leads.append(node.name)
            self.ledger.first_of = ""
        elif name == "open":
            note = str(fields["note"])
            self.hold(node.name in self.rotten or not note.startswith(UNFIT), f"{node.name}: {note}")
        elif name == "state" and fields["state"] in ("DAMAGED", "HALTED"):
            self.hold(node.name in self.rotten, f"{node.name} is {fields['state']}: {fields['reason']}")
        elif name == "old_image":
            before = int(str(fields["before"]), 16)
            forgot = self.terms.forgetful.get(node.name) == before
            self.hold(forgot, f"{node.name} has become another, and forgot nothing")
            self.writing.has_synced(node)
        elif name in ("restore.begin", "restore.again"):
            self.copies[node.name].replaced = True  # it keeps its log until a provider is found
        elif name == "restore.from":
            self.ledger.has_nothing_more(node.name)  # until it is opened again
        elif name == "restore.done":
            there = self.group.machines[node.name].disk.files(f"/{node.name}")
            for path in [path for path in self.flips if path.startswith(f"/{node.name}/") and path not in there]:
                del self.flips[path]
            self.restored += 1

    # Answers to a client.

    def shown(self, who: str, vlsn: int, value: bytes) -> None:
        """Notes that a client has an entry, by a read or an acknowledgement."""
        if vlsn > self.ledger.last:
            raise self.violated(f"{who} was shown VLSN {vlsn}; durable is {self.ledger.last}")
        durable = self.values.get(vlsn)
        if durable != value:
            raise self.violated(f"{who} was shown {value[:20]!r} at VLSN {vlsn}, which is {(durable or b'')[:20]!r}")

    def met_a_bug(self, name: str, path: str, answer: bytes) -> None:
        """Notes that a node has answered with a bug of its own, not a fault of its disk."""
        if b'"a fault of the node (' in answer:
            self.violated(f"{name} answers {path} with {answer.decode()}")

    # Events of a machine.

    def flips_at(self, path: str, offset: int, byte: int) -> None:
        """Notes the former value of a byte that rot will change."""
        self.flips.setdefault(path, {}).setdefault(offset, byte)

    def replaced(self, name: str) -> None:
        """Notes that a node's log was replaced: a wipe, a restore, an old image. Its later log is not compared with its
        earlier one."""
        self.copies[name].replaced = True
        if self.group.cdc is not None:
            self.group.cdc.books.replaced(name)
        for path in [path for path in self.flips if path.startswith(f"/{name}/")]:
            del self.flips[path]

    def cut(self, name: str) -> None:
        """Notes that an operator has cut its log: its later log is not compared with its earlier one, and blocks that
        were durable are overmarked there."""
        self.copies[name].replaced = True
        self.overmarked.add(name)

    def forgets(self, name: str) -> None:
        """Notes that an older node file will replace the node's."""
        self.terms.forgetful[name] = self.group.nodes[name].member.incarnation
