"""Appends: to the queue of the lead, while this node is the master."""

from __future__ import annotations

from repl.api import Acks, Done
from repl.lead.append_book import Append
from repl.node.services.mastership import NodeMastership
from vlsn.durability import GroupDurability
from vlsn.format.submission import Submission


class NodeAppends(NodeMastership):
    """``repl.http.services.Appends``."""

    def submit(
        self,
        submission: Submission,
        acks: Acks,
        done: Done,
        born: int | None = None,
        durability: GroupDurability | None = None,
    ) -> Append:
        admission = self._lead().admission
        if durability is not None:
            admission.check_durability(durability)
        return admission.submit(submission, acks, done, born, None, durability)
