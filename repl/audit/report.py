"""The report of an audit: one document, which ``--out`` writes and ``--since-last`` and ``vlsnlog repair`` read.

    {"version": 2, "checksums": "sha256", "tool": "0.1.0", "group": "g", "made_us": 1700000000000000,
     "equal": false, "compared_from": 1, "compared_to": 40000, "tasks": 9,
     "sources": [{"source": "DIR/n1", "node": "n1", "first": 1, "last": 40012, "dtvlsn": 40000, "bytes": …,
                  "ranges": [{"range": 0, "entries": 40000, "blocks": 625, "digest": "9ae0…", "chain": "51cf…"}],
                  "segments": [{"number": 1, "file": "00000001.vlog", "first": 1, "last": 31000, …}, …],
                  "overmarks": […], "holes": […], "series": {…}, "sizes": {…}}, …],
     "findings": [{"rule": "divergence", "source": "DIR/n3", "file": "00000002.vlog", "offset": 8192, "vlsn": 31337,
                   "value": "paid 10", "other": {"source": "DIR/n1", …, "value": "paid 11"}}]}

``equal`` is about the compared range alone: every block in it is there, whole, and the same on every source.
A finding may lie outside of it (a damaged block above the common DTVLSN), so the exit status asks for both.

``chain`` is a digest of the chain of the range before and of this range's digest, so that one number speaks for all of
the compared past.  ``open`` is the last range as it may go on: a later audit joins what it reads there.

``not_audited`` names the parts that could not be read any more. Such a report is ``partial``, never ``equal``; a later
audit does not go on from it, and a repair refuses it.

A reader of a version that it does not know refuses it; new fields have defaults and raise no version.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from repl.audit.digest import DIGEST_BYTES, NO_CHAIN, RANGE_BITS, Checksums, RangeDigest, Share, chained
from repl.audit.findings import Finding
from vlsn.errors import BadArgument

REPORT_VERSION: Final = 2
_REFUSED: Final = {1: "its digests are sums of 64 bits, which a forged block may keep: audit again"}
"""The answer to reports of versions that are read no more."""
REPORT_BYTES_MAX: Final = 1 << 30
"""The largest report that is read: some millions of segments."""
_SUMMARY: Final = ("source", "node", "first", "last", "dtvlsn", "bytes", "blocks", "entries", "live", "torn_tail")
"""The fields of a copy in the short form of the report."""


class RangeRow(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks of one range of 65 536 VLSNs, as far as they were compared; digests are 64 hex digits."""

    range: int
    """First VLSN >> 16."""
    entries: int
    blocks: int
    digest: str
    chain: str
    """Empty behind a range that was not read."""

    @property
    def sum(self) -> RangeDigest:
        return RangeDigest(self.range, self.entries, self.blocks, bytes.fromhex(self.digest))


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """VLSNs that a copy lacks between its first and its last one; both inclusive."""

    first: int
    last: int


def known(spans: Sequence[Span], at: int) -> bool:
    """Says whether range ``at`` has nothing of the VLSNs of ``spans``."""
    return not any(span.first >> RANGE_BITS <= at <= span.last >> RANGE_BITS for span in spans)


class NotAudited(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the audit that was not done, since a copy could not be read any more."""

    what: str
    """``segments``: of a copy, from ``file`` on. ``rollbacks``: findings of a running copy that one of its rollbacks
    may explain. ``differences``, ``names``: the blocks of ranges that are not the same, or may have two contents.
    ``history``: a client's history, or a part of it."""
    why: str
    source: str = ""
    file: str = ""
    segments: int = 0
    bytes: int = 0
    first: int = 0
    """The VLSNs concerned, both inclusive; 0 and 0 where they are not known."""
    last: int = 0


class OvermarkRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run of overmarked blocks: where the first and the last of them begin, and their VLSNs."""

    file: str
    offset: int
    last_offset: int
    first: int
    last: int


class SegmentRow(msgspec.Struct, frozen=True, kw_only=True):
    """A segment of a copy: its visible blocks (VLSNs, terms and times are 0 where it has none)."""

    number: int
    file: str
    bytes: int
    """The bytes of its log, from the first of the file on."""
    first: int = 0
    last: int = 0
    first_term: int = 0
    last_term: int = 0
    begun_us: int = 0
    ended_us: int = 0
    blocks: int = 0
    entries: int = 0
    damaged: bool = False
    overmarked: int = 0
    """Overmarked blocks."""
    sidecar_bytes: int = 0
    """0: it has none, or its node does not serve it."""
    salt: int = 0
    modified_us: int = 0
    """When the file was written last; 0 where that is not to be had."""
    digest: str = ""
    """That of its visible blocks, as far as they were compared; 64 hex digits."""


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """A copy's log over time, by the times in its blocks: a row a bucket of ``width_us`` in which there is a block."""

    width_us: int = 0
    at_us: list[int] = []
    """The beginnings of the buckets, ascending; µs since the epoch."""
    entries: list[int] = []
    bytes: list[int] = []
    blocks: list[int] = []
    lag_mean: list[float] = []
    """VLSNs that a block's last one lay before the DTVLSN in its header: the mean of the bucket's blocks."""
    lag_max: list[int] = []


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a directory's files, as they are allocated; -1 where a node does not tell them over HTTP."""

    segments: int = -1
    index: int = -1
    state: int = -1
    sidecars: int = -1
    aside: int = -1
    """Kept aside by rollbacks, mending and restores."""


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes by powers of two: ``counts[0]`` are empty, ``counts[k]`` have from ``2**(k-1)`` to ``2**k - 1`` bytes."""

    counts: list[int] = []
    sampled: int = 0
    """How many were looked at."""
    mean: float = 0.0


class SourceReport(msgspec.Struct, frozen=True, kw_only=True):
    """One copy as it was read: ``first`` and ``last`` visible VLSN, and what it is known to hold durable."""

    source: str
    node: str
    first: int
    last: int
    dtvlsn: int
    bytes: int
    blocks: int
    entries: int
    live: bool
    torn_tail: bool
    path: str = ""
    """The directory's absolute path, or the URL."""
    incarnation: str = ""
    """The log's, 16 hex digits, as its newest segment has it; "" where no header says it."""
    ranges: list[RangeRow] = []
    open: Share | None = None
    """The last one of ``ranges``, which later blocks may continue; None without a range."""
    segments: list[SegmentRow] = []
    overmarks: list[OvermarkRow] = []
    holes: list[Span] = []
    unread: list[Span] = []
    """VLSNs that lie in segments that could not be read."""
    series: Series = Series()
    sizes: Sizes = Sizes()
    entry_sizes: Histogram = Histogram()
    """Keys and values together, of a sample of the blocks."""
    block_sizes: Histogram = Histogram()

    @property
    def digests(self) -> dict[int, RangeDigest]:
        """The digests that were compared of this copy, by range."""
        return {row.range: row.sum for row in self.ranges}

    def knows(self, at: int) -> bool:
        """Says whether all of range ``at`` was read."""
        return known(self.unread, at)

    def summary(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _SUMMARY}


class HistoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result for a client's acknowledged ``appends`` (lines that say the same are one)."""

    file: str
    appends: int
    everywhere: int
    """Appends that are in every copy at their VLSNs, with their digests."""
    cleaned: int
    """Below the first VLSN of some copy."""
    once: int
    """Lines that say so: no other entry has the digest, and where there is no VLSN, none at all."""
    reads: int = 0
    """Lines of what was read, each at its VLSN."""
    findings: int
    """Appends that are missing or other than they were, in each copy, or there more than once. Findings name some."""


class SinceReport(msgspec.Struct, frozen=True, kw_only=True):
    """The earlier audit that this one went on from."""

    file: str
    made_us: int
    compared_to: int
    deep: bool
    segments_kept: int
    """Segments that were not read again."""
    bytes_kept: int


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome; VLSNs from ``compared_from`` to ``compared_to`` (inclusive; 0 and 0: none) were compared."""

    equal: bool
    compared_from: int
    compared_to: int
    sources: list[SourceReport]
    findings: list[Finding]
    ranges_differing: int
    """Ranges of 65 536 VLSNs that are not the same everywhere; findings name the first VLSN of some."""
    tasks: int
    """Spark tasks that ran, each counted once by its attempt's id."""
    seconds: float
    """Seconds of reading and comparing, Spark's own start left out."""
    history: HistoryReport | None = None
    version: int = REPORT_VERSION
    checksums: Checksums = Checksums.SHA256
    """The way in which blocks were compared: ``crc`` finds faults, and no forger."""
    tool: str = ""
    """The version of the vlsnlog that made it."""
    group: str = ""
    made_us: int = 0
    """When it was made, µs since the epoch."""
    since: SinceReport | None = None
    not_audited: list[NotAudited] = []
    """The parts that were left out: the report is partial where there are any."""

    @property
    def partial(self) -> bool:
        return bool(self.not_audited)

    @property
    def exit_code(self) -> int:
        """0 equal and nothing found; 1 a finding; 2 there was nothing to compare, or not all of it was audited."""
        if self.findings:
            return 1
        if self.compared_to == 0 or self.partial:
            return 2
        return 0 if self.equal else 1

    @property
    def bytes(self) -> int:
        return sum(source.bytes for source in self.sources)

    @property
    def mb_per_s(self) -> float:
        read = self.bytes - (self.since.bytes_kept if self.since else 0)
        return round(read / 1e6 / self.seconds, 1) if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Returns the short form: the verdict, a line a copy, the findings."""
        return {
            "equal": self.equal,
            "partial": self.partial,
            "compared_from": self.compared_from,
            "compared_to": self.compared_to,
            "checksums": self.checksums,
            "sources": [source.summary() for source in self.sources],
            "findings": [finding.as_dict() for finding in self.findings],
            "not_audited": msgspec.to_builtins(self.not_audited),
            "ranges_differing": self.ranges_differing,
            **({"history": msgspec.to_builtins(self.history)} if self.history else {}),
            **({"since": msgspec.to_builtins(self.since)} if self.since else {}),
            "tasks": self.tasks,
            "seconds": round(self.seconds, 3),
            "mb_per_s": self.mb_per_s,
        }

    def to_json(self) -> str:
        """Returns the whole document, which ``read_report`` reads."""
        head = {name: getattr(self, name) for name in ("version", "tool", "group", "made_us")}
        return msgspec.json.encode(head | self.as_dict() | {"sources": self.sources}).decode()


def range_rows(digests: Sequence[RangeDigest], chain: bytes = NO_CHAIN) -> list[RangeRow]:
    """Returns the rows of ``digests``, ascending, chained from ``chain`` on: that of the range before."""
    rows = []
    for each in digests:
        chain = chained(chain, each)
        hexes = {"digest": each.digest.hex(), "chain": chain.hex()}
        rows.append(RangeRow(range=each.range, entries=each.entries, blocks=each.blocks, **hexes))
    return rows


def read_report(path: str) -> AuditReport:
    """Reads a report that ``--out FILE.json`` wrote. Raises ``BadArgument`` for any other file."""
    try:
        size = os.stat(path).st_size
        if size > REPORT_BYTES_MAX:
            raise BadArgument(f"{path}: {size} bytes are no report of an audit (at most {REPORT_BYTES_MAX})")
        with open(path, "rb") as file:
            return decode_report(file.read())
    except OSError as error:
        raise BadArgument(f"{path}: {error.strerror}; name a report that an audit wrote by --out FILE.json") from None
    except ValueError as error:
        raise BadArgument(f"{path}: {error}; name a report that an audit wrote by --out FILE.json") from None


def decode_report(data: bytes) -> AuditReport:
    """Decodes a report. Raises ``ValueError`` (``msgspec.ValidationError`` is one), with what is wrong."""
    fields = msgspec.json.decode(data)
    if not isinstance(fields, dict) or "version" not in fields:
        raise ValueError("no report of an audit")
    if fields["version"] != REPORT_VERSION:
        why = _REFUSED.get(fields["version"]) if isinstance(fields["version"], int) else None
        why = why or f"this vlsnlog reads {REPORT_VERSION}"
        raise ValueError(f"a report of version {fields['version']!r}, and {why}")
    findings = fields.get("findings")
    if isinstance(findings, list):
        fields["findings"] = [_unflattened(each) for each in findings]
    report = msgspec.convert(fields, AuditReport)
    for row in (row for source in report.sources for row in source.ranges):
        if not (_is_digest(row.digest) and (_is_digest(row.chain) or not row.chain)):
            raise ValueError(f"range {row.range}: a digest has {2 * DIGEST_BYTES} hex digits")
    return report


def _is_digest(text: str) -> bool:
    return len(text) == 2 * DIGEST_BYTES and set(text) <= set("0123456789abcdef")


def _unflattened(fields: object) -> object:
    """Puts what only a finding's rule says into its ``more``."""
    if not isinstance(fields, dict):
        return fields
    own = ("rule", "source", "file", "offset", "vlsn", "detail", "owner", "mend")
    more = {name: value for name, value in fields.items() if name not in own}
    return {name: fields[name] for name in own if name in fields} | {"more": more}
