"""What a node's gateway calls: ``repl.api.NodeApi``, answered by whichever part of the node has the answer.

Nothing is kept here.  What needs the log raises while it is not open; what only a master does raises ``NotMaster`` on
any other node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from repl.api import Acks, BlockPage, Done, EntryPage, FeedHello, ProducerAt
from repl.group import peers
from repl.group.membership import read_change
from repl.lead.append_book import Append
from repl.lead.exactly_once import missing
from repl.lead.group_changes import document
from repl.node.metrics import metrics_text
from repl.node.status import readiness, status
from repl.offload import settle, settle_error
from repl.read.reads import Reads
from repl.read.segment_files import SegmentFiles
from repl.repair.cleaning import told
from repl.repair.integrity import answer_copy
from repl.repair.providing import answer_ask, block_of, read_range
from vlsn.errors import NoSpace, NotAllowed, NotMaster, WrongGroup, WrongName
from vlsn.format.block import Entry
from vlsn.format.seal import Submission
from vlsn.format.segment import segment_name
from vlsn.ids import NodeName
from vlsn.levels import Levels
from vlsn.seams import Channel
from vlsn.state.producers import ProducerPlace
from vlsn.state.state_store import Checkpoint

if TYPE_CHECKING:
    from repl.lead.leading import Leading
    from repl.node.node import Node


class NodeService:
    """The calls of one node, from its start to its stop."""

    def __init__(self, node: Node) -> None:
        self._node = node

    # What it says of itself.

    @property
    def name(self) -> str:
        return self._node.config.name

    @property
    def group(self) -> str:
        return self._node.config.group

    @property
    def incarnation(self) -> int:
        return self._node.incarnation

    @property
    def levels(self) -> Levels:
        return self._node.seams.levels

    def is_master(self) -> bool:
        return self._node.is_master()

    def master_url(self) -> str | None:
        return self._node.master_url()

    def dtvlsn(self) -> int:
        return self._node.dtvlsn()

    def addresses(self) -> list[str]:
        node = self._node
        return [node.config.listen, *node.members.urls.values(), *node.config.hosts]

    def status(self) -> dict[str, Any]:
        return status(self._node)

    def events_since(self, number: int, limit: int) -> dict[str, Any]:
        return {"node": self.name, **self._node.events.since(number, limit)}

    def readiness(self) -> list[str]:
        return readiness(self._node)

    def metrics_text(self) -> bytes:
        return metrics_text(self._node)

    # Appends and reads.

    def submit(self, submission: Submission, acks: Acks, done: Done, born: int | None = None) -> Append:
        return self._lead().admission.submit(submission, acks, done, born)

    async def read(
        self, from_vlsn: int | None, *, limit: int, bytes_max: int, wait_s: float, all_kinds: bool
    ) -> EntryPage:
        return await self._reads().page(from_vlsn, limit=limit, bytes_max=bytes_max, wait_s=wait_s, all_kinds=all_kinds)

    async def read_blocks(self, from_vlsn: int | None, *, bytes_max: int, wait_s: float) -> BlockPage:
        return await self._reads().blocks(from_vlsn, bytes_max=bytes_max, wait_s=wait_s)

    async def read_one(self, vlsn: int) -> Entry:
        return await self._reads().one(vlsn)

    def check_place(self, vlsn: int, term: int) -> None:
        self._reads().check_place(vlsn, term)

    async def confirm(self, timeout_s: float) -> int:
        self._node.opened()
        return await self._node.read_index.confirm(timeout_s)

    async def producer(self, producer: int, timeout_s: float) -> ProducerAt:
        await self.confirm(timeout_s)
        table, durable = self._node.opened().history.producers, self._node.dtvlsn()
        life = table.find(producer, at=durable + 1)
        place = life.as_of(durable) if life is not None else ProducerPlace()
        if table.lacks_to and not place.last:
            raise missing(producer, table.lacks_to)
        return ProducerAt(place, durable, table.forgotten_to(at=durable + 1))

    # The log's files.

    async def segments(self) -> list[dict[str, Any]]:
        return self._files().listing()

    def segment_end(self, number: int) -> int:
        return self._files().end(number)

    async def read_segment(self, number: int, start: int, end: int) -> bytes:
        return await self._files().read(number, start, end)

    # Replicas, and other members.

    async def check_feed(self, hello: FeedHello) -> None:
        role = self._node.leading
        if hello.group != self.group:
            raise WrongGroup(f"this node is of group {self.group}, not {hello.group}")
        if hello.to != self.name:
            raise WrongName(f"this node is {self.name}, not {hello.to}")
        if role is None:
            raise NotMaster("this node is not the master: it feeds nobody")
        await role.check_feed(hello)

    async def serve_feed(self, hello: FeedHello, channel: Channel) -> None:
        role = self._node.leading
        if role is not None:
            await role.serve_feed(hello, channel)

    async def peer_hello(self, body: dict[str, Any]) -> dict[str, Any]:
        return await peers.answer_hello(self._node, body)

    async def peer_vote(self, body: dict[str, Any]) -> dict[str, Any]:
        return await peers.answer_vote(self._node, body)

    async def peer_stand(self, body: dict[str, Any]) -> dict[str, Any]:
        return await peers.answer_stand(self._node, body)

    async def peer_read_index(self, body: dict[str, Any]) -> dict[str, Any]:
        self._node.opened()
        return await self._node.read_index.answer(body)

    async def peer_block(self, asked: Mapping[str, str], term: int, first: int) -> bytes:
        return await block_of(self._node, asked, term, first)

    async def peer_copy(self, asked: Mapping[str, str], vlsn: int) -> dict[str, Any]:
        return await answer_copy(self._node, asked, vlsn)

    async def restore_ask(self, body: dict[str, Any]) -> bytes:
        return await answer_ask(self._node, body)

    async def restore_range(self, session: str, number: int, start: int, end: int, have: int) -> tuple[bytes, int]:
        return await read_range(self._node, session, number, start, end, have)

    # A person's.

    async def checkpoint(self) -> dict[str, Any]:
        log = self._node.opened()
        looked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        log.space.look(partial(settle(looked), None))
        await looked
        if log.space.cramped:
            raise NoSpace("the disk has no room for a checkpoint")
        done: asyncio.Future[Checkpoint] = asyncio.get_running_loop().create_future()
        log.checkpointer.run(done=settle(done), failed=settle_error(done))
        checkpoint = await done
        return {"node": self.name, "id": checkpoint.id, "last": checkpoint.last_vlsn, "dtvlsn": checkpoint.dtvlsn}

    async def rotate(self) -> dict[str, Any]:
        log = self._node.opened()
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        log.rotate("request", settle(done))
        number = await done
        return {"node": self.name, "number": number, "file": segment_name(number)}

    async def clean(self, *, dry_run: bool) -> dict[str, Any]:
        self._node.opened()
        cleaning = self._node.cleaning
        assert cleaning is not None
        return told(await (cleaning.dry_run() if dry_run else cleaning.clean()), self.name)

    async def restore(self) -> dict[str, Any]:
        state = self._node.state
        if state in ("MASTER", "RESTORING"):
            raise NotAllowed(f"this node is {state}: it is not restored")
        self._node.restoration.want("a person asked for it")
        return {"node": self.name, "state": "RESTORING"}

    async def transfer(self, to: str | None) -> dict[str, Any]:
        lead = self._lead()
        if to is not None and to == self.name:
            return {"from": self.name, "to": to}
        name = await lead.handing_over.run(NodeName(to) if to is not None else None)
        return {"from": self.name, "to": name}

    def group_document(self) -> dict[str, Any]:
        return document(self._node)

    async def change_group(self, body: dict[str, Any]) -> dict[str, Any]:
        return await self._lead().changes.change(read_change(body))

    def _lead(self) -> Leading:
        lead = self._node.lead
        if lead is None:
            raise NotMaster("this node is not the master")
        return lead

    def _files(self) -> SegmentFiles:
        self._node.opened()
        assert self._node.files is not None
        return self._node.files

    def _reads(self) -> Reads:
        self._node.opened()
        assert self._node.reads is not None
        return self._node.reads
