"""Appends: to the queue of the lead, while this node is the master."""

from __future__ import annotations

from repl.api import Acks, CommitSets, Done
from repl.lead.append_book import Append
from repl.names.positions import is_past
from repl.node.services.commits import puts_of
from repl.node.services.mastership import NodeMastership
from vlsn.durability import GroupDurability
from vlsn.errors import BadArgument
from vlsn.format.submission import Submission, Transaction


class NodeAppends(NodeMastership):
    """``repl.lead.append_http.Appends``."""

    def submit(
        self,
        submission: Submission,
        acks: Acks,
        done: Done,
        born: int | None = None,
        durability: GroupDurability | None = None,
        sets: CommitSets | None = None,
    ) -> Append:
        lead = self._lead()
        if durability is not None:
            lead.admission.check_durability(durability)
        if sets is None:
            return lead.admission.submit(submission, acks, done, born, None, durability)
        assert isinstance(submission, Transaction)
        try:
            puts = puts_of(lead, sets)
        except BadArgument as error:
            if is_past(lead.log, sets.positions):  # of its end: one that was unseated lacks what was read elsewhere
                return lead.admission.refuse(submission, acks, done, error)
            raise
        if puts is not None:
            submission = Transaction(submission.parts, puts.entry(), (submission.producer, submission.sequence))
        return lead.admission.submit(submission, acks, done, born, puts, durability)
