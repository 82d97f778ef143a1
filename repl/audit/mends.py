"""Finds the command that mends the fault of a finding.  Pure.

    a block in a node's directory, damaged or not the others'    vlsnlog repair DIR --from-audit REPORT
    a fault that a node finds when it starts                     vlsnlog node --config DIR/node.toml, which restores it
    a fault that a node does not find when it starts             vlsnlog restore --url URL
    a fault in a derived file                                    rm
    a segment of another node, with which no node starts         mv, then the start of the node

``repair``, ``rm`` and ``mv`` are for a stopped node, ``restore`` is for a running node. A command is typed on the
machine that ran the audit. Some findings have no command (""): the same damage in all copies, a finding about a
client's history, or two copies that differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import Final

from repl.audit.findings import Finding
from repl.audit.members import GroupAt
from repl.audit.report import SourceReport
from repl.audit.rules import AuditRule
from vlsn.verify.inspection import Rule

CONFIG_FILE: Final = "node.toml"
"""The settings file in a directory that ``vlsnlog cluster`` has made."""
REPORT_FILE: Final = "report.json"
_DAMAGED: Final = (Rule.FRAME_HEADER, Rule.FRAME_CRC, Rule.BLOCK_HEADER, Rule.BLOCK_BODY)
_FOUND_AT_START: Final = (
    *(Rule.SEGMENT_HEADER, Rule.GAP, Rule.RECORD, Rule.SHORTER, Rule.OVERMARKED_DURABLE, Rule.NODE_FILE),
    *_DAMAGED,
)


def is_replaceable(finding: Finding, compared: tuple[int, int]) -> bool:
    """Returns whether a repair may replace the finding's block by another copy's block. The block must be within the
    ``compared`` VLSNs (inclusive)."""
    marked = finding.rule == Rule.OVERMARK and "matchpoint" not in finding.more
    in_place = finding.rule in _DAMAGED or marked or finding.more.get("in_place") is True
    return in_place and compared[0] <= finding.vlsn <= compared[1]


@dataclass(frozen=True, slots=True)
class Mender:
    """Finds commands. ``report`` is the JSON file with this audit's report, "" for none. ``compared`` are the VLSNs
    that the audit compared."""

    copies: Mapping[str, SourceReport]
    configured: frozenset[str]
    """The directories that contain the file ``CONFIG_FILE``."""
    group: GroupAt
    name: str
    """The group's name."""
    compared: tuple[int, int]
    report: str

    def mended(self, findings: Sequence[Finding]) -> list[Finding]:
        """Returns the findings, completed with the nodes of their copies and with the commands that mend them."""
        found = Counter((finding.rule, finding.vlsn) for finding in findings)
        return [self._named(each, alone=found[each.rule, each.vlsn] < len(self.copies)) for each in findings]

    def _named(self, finding: Finding, *, alone: bool) -> Finding:
        copy = self.copies.get(finding.source)
        if copy is None:
            return finding  # a finding about a client's history concerns no single copy
        return replace(finding, owner=copy.node, mend=self._command(finding, copy, alone=alone))

    def _command(self, finding: Finding, copy: SourceReport, *, alone: bool) -> str:
        directory = "" if "://" in copy.source else copy.source
        if directory and finding.rule in (Rule.SIDECAR, Rule.INDEX):
            recursive = "-r " if finding.rule == Rule.INDEX else ""
            return f"rm {recursive}{quote(f'{directory}/{finding.file}')}"
        if not alone or finding.rule.startswith("history-") or self._is_undecided(finding):
            return ""
        if directory and "of_node" in finding.more:
            file = f"{directory}/{finding.file}"
            return f"mv {quote(file)} {quote(f'{file}.aside')} && {self._start(copy)}"
        if directory and is_replaceable(finding, self.compared):
            return self._repair(copy)
        url = copy.source if not directory else dict(self.group.urls).get(copy.node, "")
        if directory and (finding.rule in _FOUND_AT_START or not url):
            return self._start(copy)
        return f"vlsnlog restore --url {quote(url)}"

    def _is_undecided(self, finding: Finding) -> bool:
        """Returns whether it is undecided which copy is right: there are only two copies and they differ, or the copies
        are divided into different blocks."""
        return finding.rule == AuditRule.DIVERGENCE and (len(self.copies) == 2 or not finding.file)

    def _repair(self, copy: SourceReport) -> str:
        report, audit = self.report or REPORT_FILE, ""
        if not self.report:
            audit = f"vlsnlog audit {' '.join(map(quote, self.copies))} --out {REPORT_FILE}; "
        others = [each.node for each in self.copies.values() if each is not copy]
        right = f" --right {quote(others[0])}" if len(others) == 1 else ""
        return f"{audit}vlsnlog repair {quote(copy.source)} --from-audit {quote(report)}{right}"

    def _start(self, copy: SourceReport) -> str:
        if copy.source in self.configured:
            return f"vlsnlog node --config {quote(f'{copy.source}/{CONFIG_FILE}')}"
        members = "".join(f" --member {quote(f'{name}={url}')}" for name, url in self.group.urls)
        return f"vlsnlog node --name {quote(copy.node)} --dir {quote(copy.source)} --group {quote(self.name)}{members}"
