"""Manifests: a target's contents as a chain of numbered files. Each manifest is the commit of a batch or a claim. Pure.

    _manifests/00000000000000000001.json   claim  exporter e1                    last 0
    _manifests/00000000000000000002.json   batch  exporter e1  VLSN    1 to 5000  last 5000
    _manifests/00000000000000000003.json   claim  exporter e2                    last 5000
    _manifests/00000000000000000004.json   batch  exporter e2  VLSN 5001 to 5300  last 5300

1. Each number of a manifest is used once. An exporter that commits N has read N - 1, and no other exporter can commit N
   after it.
2. Each manifest says where the next batch begins, so an exporter reads only the last manifest.
3. A claim uses the number that an earlier exporter would commit next, so the earlier exporter can commit nothing more.
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
"""The most bytes of a manifest that are read: twice the size of a manifest with ``FILES_MAX`` files."""

Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]


class BadTarget(VlsnLogError):
    """A target that cannot be exported to, or continued. Nothing in the target was changed."""

    slug = "bad-argument"
    retry_safe = True


class Fenced(VlsnLogError):
    """Another exporter holds this target. Nothing of the batch was committed."""

    slug = "duplicate-feed"
    retry_safe = True


class Kind(StrEnum):
    """The two kinds of manifest."""

    CLAIM = "claim"
    BATCH = "batch"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of a target's first start. Every later batch must have the same options."""

    group: str
    format: str
    partition_by: str
    key_prefix: str
    """The prefix of the exported keys, as text; bytes that are no UTF-8 are escaped as ``%XX``. "" exports every
    key."""
    begin: str
    """The option ``--from`` of the first start, as typed; "" for the log's first entry."""


class DataFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a batch. ``name`` is its final path within the target, ``staged`` the path at which it is written
    first."""

    name: str
    staged: str
    first: Positive
    last: Positive
    rows: Positive
    bytes: Positive
    crc32c: Natural


class Gap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The VLSNs, inclusive, that retention removed before they were exported."""

    first: Positive
    last: Positive


class Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The block at the last exported VLSN, by its term, its time and its body's checksum. Another log has another block
    there, and so has this log after a truncation."""

    term: Positive
    time_us: Natural
    crc32c: Natural


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One commit to a target: a batch or a claim."""

    version: int = VERSION
    number: Positive
    kind: Kind
    exporter: str
    settings: Settings
    first: Natural
    """The first VLSN of the batch; in a claim, the next VLSN to export."""
    last: Natural
    """The last VLSN that is exported or skipped; 0 before the first batch."""
    mark: Mark | None
    """The block at the last exported VLSN, or None while nothing is exported."""
    rows: Natural = 0
    rows_total: Natural = 0
    """The number of rows in all batches up to this one."""
    gap: Gap | None = None
    files: tuple[DataFile, ...] = ()
    time_us: Natural = 0
    """The time of the commit by the exporter's clock, in µs since the epoch."""

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
    """Returns the number in the last part of a manifest's name; 0 for a name of any other file."""
    stem, dot, ending = name.rpartition("/")[2].partition(".")
    return int(stem) if ending == "json" and dot and len(stem) == DIGITS and stem.isascii() and stem.isdigit() else 0


def encode(manifest: Manifest) -> bytes:
    """Encodes a manifest, after a check that it can be decoded again. Raises ``ValueError`` if the manifest is
    invalid."""
    manifest.validate()
    return msgspec.json.format(_encoder.encode(manifest), indent=1) + b"\n"


def decode(data: bytes, name: str) -> Manifest:
    """Decodes and checks a manifest. Raises ``BadTarget``, which names the manifest."""
    try:
        manifest = _decoder.decode(data)
        manifest.validate()
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise BadTarget(f"{name} is no manifest of an export: {error}") from None
    if manifest.number != number_of(name):
        raise BadTarget(f"{name} holds manifest {manifest.number}: it was moved or renamed")
    return manifest
