"""The report of an audit: one JSON document. ``--out`` writes the report, and ``--since-last`` and ``vlsnlog repair``
read it.

    {"version": 2, "checksums": "sha256", "tool": "0.1.0", "group": "g", "made_us": 1700000000000000,
     "equal": false, "compared_from": 1, "compared_to": 40000, "tasks": 9,
     "sources": [{"source": "DIR/n1", "node": "n1", "first": 1, "last": 40012, "dtvlsn": 40000, "bytes": …,
                  "ranges": [{"range": 0, "entries": 40000, "blocks": 625, "digest": "9ae0…", "chain": "51cf…"}],
                  "segments": [{"number": 1, "file": "00000001.vlog", "first": 1, "last": 31000, …}, …],
                  "overmarks": […], "holes": […], "series": {…}, "sizes": {…}}, …],
     "findings": [{"rule": "divergence", "source": "DIR/n3", "file": "00000002.vlog", "offset": 8192, "vlsn": 31337,
                   "value": "paid 10", "other": {"source": "DIR/n1", …, "value": "paid 11"}}]}

``equal`` is about the compared range alone: every source has every block of the range, intact and with equal bytes. A
finding may be outside the compared range (a damaged block above the common durable end), so the exit status depends on
``equal`` and on the findings.

``chain`` is a digest of two values: the chain of the range before, and this range's digest. The chain of the last range
covers all compared ranges. ``open`` is the last range, which may continue: a later audit adds the blocks that it reads
there.

``not_audited`` names the parts that could no longer be read. A report with unread parts is ``partial``, never
``equal``. A later audit does not continue it, and a repair refuses it.

A reader refuses a report of an unknown version. New fields have defaults and do not raise the version.
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
"""The reasons for refusing reports of old versions, by version number."""
REPORT_BYTES_MAX: Final = 1 << 30
"""The most bytes of a report that are read: enough for some millions of segments."""
_SUMMARY: Final = ("source", "node", "first", "last", "dtvlsn", "bytes", "blocks", "entries", "live", "torn_tail")
"""The fields of a copy that the short form of the report has."""


class RangeRow(msgspec.Struct, frozen=True, kw_only=True):
    """The compared blocks of one range of 65 536 VLSNs. A digest has 64 hex digits."""

    range: int
    """The range's number: its first VLSN >> 16."""
    entries: int
    blocks: int
    digest: str
    chain: str
    """The range's chain; "" after a range that was not read."""

    @property
    def sum(self) -> RangeDigest:
        return RangeDigest(self.range, self.entries, self.blocks, bytes.fromhex(self.digest))


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """VLSNs that are missing in a copy between its first and its last VLSN; ``first`` and ``last`` are inclusive."""

    first: int
    last: int


def known(spans: Sequence[Span], at: int) -> bool:
    """Returns whether range ``at`` was read completely: none of its VLSNs is in ``spans``."""
    return not any(span.first >> RANGE_BITS <= at <= span.last >> RANGE_BITS for span in spans)


class NotAudited(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the audit that was not done, because a copy could no longer be read."""

    what: str
    """Names the missing part. ``segments``: a copy's segments from ``file`` on. ``rollbacks``: findings of a running
    copy that may come from a rollback under way. ``differences``: ranges whose blocks differ. ``names``: ranges in
    which a name may have two contents. ``history``: a client's history, or a part of it."""
    why: str
    source: str = ""
    file: str = ""
    segments: int = 0
    bytes: int = 0
    first: int = 0
    """The first and the last VLSN concerned, inclusive; 0 and 0 if they are unknown."""
    last: int = 0


class OvermarkRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run of overmarked (rolled-back) blocks: the offsets of the first and the last block, and their VLSNs."""

    file: str
    offset: int
    last_offset: int
    first: int
    last: int


class SegmentRow(msgspec.Struct, frozen=True, kw_only=True):
    """A segment of a copy and its visible blocks. VLSNs, terms and times are 0 if no block is visible."""

    number: int
    file: str
    bytes: int
    """The bytes of the segment's log, counted from the first byte of the file."""
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
    """The number of overmarked (rolled-back) blocks."""
    sidecar_bytes: int = 0
    """The size of the sidecar (the segment's index file) in bytes; 0 if there is none, or if the node does not serve
    it."""
    salt: int = 0
    modified_us: int = 0
    """The time of the file's last write; 0 if unknown."""
    digest: str = ""
    """The digest of the segment's compared blocks: 64 hex digits."""


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """A copy's log over time, by the times in its blocks. Each bucket of ``width_us`` with a block has one row."""

    width_us: int = 0
    at_us: list[int] = []
    """The begins of the buckets, ascending, in µs since the epoch."""
    entries: list[int] = []
    bytes: list[int] = []
    blocks: list[int] = []
    lag_mean: list[float] = []
    """The mean lag of the blocks in each bucket. A block's lag is the distance from the durable end (DTVLSN) in its
    header to its last VLSN."""
    lag_max: list[int] = []


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """The allocated bytes of a directory's files. A size that a node does not report over HTTP is -1."""

    segments: int = -1
    index: int = -1
    state: int = -1
    sidecars: int = -1
    aside: int = -1
    """The bytes of files that rollbacks, mending and restores keep aside."""


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes by powers of two: ``counts[0]`` counts sizes of 0, ``counts[k]`` counts sizes from ``2**(k-1)`` to ``2**k -
    1`` bytes."""

    counts: list[int] = []
    sampled: int = 0
    """The number of blocks or entries that were counted."""
    mean: float = 0.0


class SourceReport(msgspec.Struct, frozen=True, kw_only=True):
    """One copy as it was read: its ``first`` and ``last`` visible VLSN, and ``dtvlsn``, the last VLSN that it knows to
    be durable."""

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
    """The log's incarnation (a random number of its store), 16 hex digits, from its newest segment; "" if no header has
    it."""
    ranges: list[RangeRow] = []
    open: Share | None = None
    """The last of the ``ranges``, to which later blocks may be added, or None if there are no ranges."""
    segments: list[SegmentRow] = []
    overmarks: list[OvermarkRow] = []
    holes: list[Span] = []
    unread: list[Span] = []
    """The VLSNs of the segments that could not be read."""
    series: Series = Series()
    sizes: Sizes = Sizes()
    entry_sizes: Histogram = Histogram()
    """The sizes of entries (key and value together) in a sample of the blocks."""
    block_sizes: Histogram = Histogram()

    @property
    def digests(self) -> dict[int, RangeDigest]:
        """Returns the compared digests of this copy, by range."""
        return {row.range: row.sum for row in self.ranges}

    def knows(self, at: int) -> bool:
        """Returns whether range ``at`` was read completely."""
        return known(self.unread, at)

    def summary(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _SUMMARY}


class HistoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result for a client's acknowledged ``appends``. Identical lines count as one append."""

    file: str
    appends: int
    everywhere: int
    """The number of appends that every copy has at the right VLSN and with the right digest."""
    cleaned: int
    """The number of appends that some copy has cleaned away: they are below its first VLSN."""
    once: int
    """The number of lines that say ``once``. The digest of a line with ``once`` may occur only at the line's VLSN. If
    the line has no VLSN, the digest may not occur at all."""
    reads: int = 0
    """The number of lines that say ``read``."""
    findings: int
    """The number of appends that are missing in a copy, changed, or there more than once. The report lists some of them
    as findings."""


class SinceReport(msgspec.Struct, frozen=True, kw_only=True):
    """The earlier audit that this audit continues."""

    file: str
    made_us: int
    compared_to: int
    deep: bool
    segments_kept: int
    """The number of segments that were not read again, because an earlier audit had read them."""
    bytes_kept: int


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an audit, which compared the VLSNs from ``compared_from`` to ``compared_to`` (inclusive; 0 and 0
    for none)."""

    equal: bool
    compared_from: int
    compared_to: int
    sources: list[SourceReport]
    findings: list[Finding]
    ranges_differing: int
    """The number of ranges of 65 536 VLSNs that differ between copies. Findings name the first differing VLSN in some
    of them."""
    tasks: int
    """The number of Spark tasks that ran, each repeated attempt counted once."""
    seconds: float
    """The seconds of reading and comparing, without the start of Spark."""
    history: HistoryReport | None = None
    version: int = REPORT_VERSION
    checksums: Checksums = Checksums.SHA256
    """The checksum by which blocks were compared; with ``crc`` the audit finds faults, but not a forgery."""
    tool: str = ""
    """The version of the vlsnlog that made the report."""
    group: str = ""
    made_us: int = 0
    """The time at which the report was made, in µs since the epoch."""
    since: SinceReport | None = None
    not_audited: list[NotAudited] = []
    """The parts that were not audited. If there are any, the report is partial."""

    @property
    def partial(self) -> bool:
        return bool(self.not_audited)

    @property
    def exit_code(self) -> int:
        """Returns 0 if the copies are equal and nothing was found, and 1 if there is a finding. Returns 2 if there was
        nothing to compare, or if some part was not audited."""
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
        """Returns the short form: the verdict, one line for each copy, the findings."""
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
        """Returns the whole report as JSON, which ``read_report`` can read."""
        head = {name: getattr(self, name) for name in ("version", "tool", "group", "made_us")}
        return msgspec.json.encode(head | self.as_dict() | {"sources": self.sources}).decode()


def range_rows(digests: Sequence[RangeDigest], chain: bytes = NO_CHAIN) -> list[RangeRow]:
    """Returns the rows of ``digests``, which are ascending. ``chain`` is the chain of the range before the first
    one."""
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
    """Decodes a report. Raises ``ValueError`` (also ``msgspec.ValidationError``) with the reason."""
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
    """Moves the facts of a finding's rule into the finding's ``more``."""
    if not isinstance(fields, dict):
        return fields
    own = ("rule", "source", "file", "offset", "vlsn", "detail", "owner", "mend")
    more = {name: value for name, value in fields.items() if name not in own}
    return {name: fields[name] for name in own if name in fields} | {"more": more}
