"""Manifests: the contents of a target, as a chain of numbered files, each the commit of a batch or a claim.  Pure.

    _manifests/00000000000000000001.json   claim  exporter e1                    last 0
    _manifests/00000000000000000002.json   batch  exporter e1  VLSN    1 to 5000  last 5000
    _manifests/00000000000000000003.json   claim  exporter e2                    last 5000
    _manifests/00000000000000000004.json   batch  exporter e2  VLSN 5001 to 5300  last 5300

1. A number is used once: the exporter that commits N has seen N - 1, and no other can commit N after it.
2. Each manifest says where the next batch begins, so an exporter reads the last manifest only.
3. A claim uses the number that an earlier exporter would commit next: that one can commit nothing any more.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from vlsn.errors import VlsnLogError

VERSION: Final = 1
FOLDER: Final = "_manifests"
DIGITS: Final = 20
MANIFEST_BYTES_MAX: Final = 64 << 20
"""The most bytes of a manifest that are read: twice the size for the most files of one batch."""

Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]


class BadTarget(VlsnLogError):
    """A target that cannot be exported to, or continued; nothing in it was changed."""

    slug = "bad-argument"
    retry_safe = True


class Fenced(VlsnLogError):
    """Another exporter holds this target; nothing of the batch was committed."""

    slug = "duplicate-feed"
    retry_safe = True


class Kind(StrEnum):
    """The two kinds of manifest."""

    CLAIM = "claim"
    BATCH = "batch"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a target's first start, which every later batch must have."""

    group: str
    format: str
    partition_by: str
    key_prefix: str
    """Text, with surrogates for invalid UTF-8, escaped as ``%XX``; empty for every key."""
    begin: str
    """The ``--from`` of the first start, as typed; empty for the log's first entry."""


class DataFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a batch: ``name`` is its final path within the target, ``staged`` the path at which it is written."""

    name: str
    staged: str
    first: Positive
    last: Positive
    rows: Positive
    bytes: Positive
    crc32c: Natural


class Gap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """VLSNs that retention had removed before they were exported; inclusive."""

    first: Positive
    last: Positive


class Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The block at the last exported VLSN, by its term, its time and its body's checksum. Another log, or this log
    after a truncation, has another block there."""

    term: Positive
    time_us: Natural
    crc32c: Natural


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One commit."""

    version: int = VERSION
    number: Positive
    kind: Kind
    exporter: str
    settings: Settings
    first: Natural
    """The first VLSN of the batch; for a claim, the next one to export."""
    last: Natural
    """The last VLSN that is exported or skipped; 0 before the first."""
    mark: Mark | None
    """None while nothing is exported."""
    rows: Natural = 0
    rows_total: Natural = 0
    """Rows of all batches up to this one."""
    gap: Gap | None = None
    files: tuple[DataFile, ...] = ()
    time_us: Natural = 0
    """Its time by its exporter's clock, µs since the epoch."""

    def validate(self) -> None:
        """Raises ``ValueError`` for a manifest that no exporter writes."""
        if self.version != VERSION:
            raise ValueError(f"version {self.version}; this release reads {VERSION}")
        if self.kind is Kind.CLAIM and (self.files or self.rows or self.first != self.last + 1):
            raise ValueError("a claim with a batch")
        if self.kind is Kind.BATCH:
            if not 1 <= self.first <= self.last or self.mark is None:
                raise ValueError(f"a batch of VLSN {self.first} to {self.last}")
            if self.rows != sum(file.rows for file in self.files) or self.rows > self.last - self.first + 1:
                raise ValueError("rows are not those of the files")
            if any(not self.first <= file.first <= file.last <= self.last for file in self.files):
                raise ValueError("a file with VLSNs of another batch")
            if len({file.name for file in self.files}) < len(self.files):
                raise ValueError("two files of one name")
        if self.gap is not None and not self.gap.first <= self.gap.last == self.first - 1:
            raise ValueError("a gap that does not end where the batch begins")


_decoder = msgspec.json.Decoder(Manifest)
_encoder = msgspec.json.Encoder()


def name_of(number: int) -> str:
    """Returns the name, within the target, of manifest ``number``."""
    return f"{FOLDER}/{number:0{DIGITS}}.json"


def number_of(name: str) -> int:
    """Returns the number in a manifest's name (its last part); 0 for any other name."""
    stem, dot, ending = name.rpartition("/")[2].partition(".")
    return int(stem) if ending == "json" and dot and len(stem) == DIGITS and stem.isascii() and stem.isdigit() else 0


def encode(manifest: Manifest) -> bytes:
    """Encodes after a check that it can be read again. Raises ``ValueError`` if it is wrong."""
    manifest.validate()
    return msgspec.json.format(_encoder.encode(manifest), indent=1) + b"\n"


def decode(data: bytes, name: str) -> Manifest:
    """Decodes and checks. Raises ``BadTarget`` that names the manifest."""
    try:
        manifest = _decoder.decode(data)
        manifest.validate()
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise BadTarget(f"{name} is no manifest of an export: {error}") from None
    if manifest.number != number_of(name):
        raise BadTarget(f"{name} holds manifest {manifest.number}: it was moved or renamed")
    return manifest
