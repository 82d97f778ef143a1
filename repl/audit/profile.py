"""Makes a segment's profile: its blocks over time, their sizes, and the VLSNs that are missing or overmarked (rolled
back).

A profile is cheap: a few NumPy calls on the blocks' headers, which the check has already read, and the entries of a few
blocks.

    buckets     of the smallest width of ``WIDTHS_US`` with which the segment needs at most ``samples_max`` buckets;
                each width divides the next, so the buckets of many segments add up exactly in wider buckets
    sizes       counts by powers of two: the sizes of all blocks, and of the entries of evenly spaced blocks
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from repl.audit.blocks import Blocks
from repl.audit.report import Histogram, Series
from vlsn.format.frame import FRAME_BYTES
from vlsn.format.rows import Rows
from vlsn.seams import Buffer

_MS: Final = 1_000
_S: Final = 1_000 * _MS
_DAY: Final = 86_400 * _S
WIDTHS_US: Final = (
    *(_MS, 5 * _MS, 10 * _MS, 50 * _MS, 100 * _MS, 500 * _MS),
    *(_S, 5 * _S, 10 * _S, 30 * _S, 60 * _S, 300 * _S, 600 * _S, 1_800 * _S, 3_600 * _S, 21_600 * _S),
    *(_DAY, 7 * _DAY, 28 * _DAY, 364 * _DAY, 3_640 * _DAY, 36_400 * _DAY, 364_000 * _DAY),
)
"""The widths of buckets, ascending. Each width divides the next one."""
SAMPLES_MAX: Final = 256
"""The most buckets of one segment."""
SAMPLES_MIN: Final = 4
SAMPLES_IN_ALL: Final = 1 << 16
"""The most buckets of all segments together, approximately."""
SERIES_MAX: Final = 480
"""The most buckets of a series in a report."""
_ENTRIES_SAMPLED: Final = 1 << 16
_BLOCKS_SAMPLED: Final = 64
_SIZES: Final = 34
_SPANS_MAX: Final = 100
"""The most holes, and the most runs of overmarked (rolled-back) blocks, that are kept for one segment. Segments rarely
have more."""

SAMPLE: Final = np.dtype(
    [("at", "<i8"), ("entries", "<i8"), ("bytes", "<i8"), ("blocks", "<i8"), ("lag", "<i8"), ("lag_max", "<i8")]
)
"""The columns of a bucket: ``at`` is the bucket's number, ``lag`` the sum over its blocks."""
Samples = NDArray[np.void]
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Profile:
    """The profile of one segment; its size does not grow with the number of entries."""

    begun_us: int
    ended_us: int
    width_us: int
    samples: Samples
    block_sizes: I64
    block_bytes: int
    entry_sizes: I64
    entry_bytes: int
    holes: tuple[tuple[int, int], ...]
    """The first and the last VLSN of each gap between two visible blocks of the segment."""
    overmarked: int
    overmarks: tuple[tuple[int, int, int, int], ...]
    """Runs of overmarked (rolled-back) blocks: the offsets of the first and the last block, and the first and the last
    VLSN."""
    sidecar_bytes: int


def samples_max(segments: int) -> int:
    """Returns the most buckets that each of ``segments`` segments may have."""
    return max(SAMPLES_MIN, min(SAMPLES_MAX, SAMPLES_IN_ALL // max(1, segments)))


def profile_of(buf: Buffer, blocks: Blocks, visible: Blocks, *, sidecar_bytes: int, samples: int) -> Profile:
    """Makes a segment's profile. ``buf`` is the segment's file from the first byte on. ``visible`` are those of
    ``blocks`` that were not rolled back."""
    clock = visible.headers["clock_us"].astype(np.int64)
    begun, ended = (int(clock.min()), int(clock.max())) if len(clock) else (0, 0)
    width = next((each for each in WIDTHS_US if ended // each - begun // each < samples), WIDTHS_US[-1])
    sizes = (visible.ends - visible.offsets).astype(np.int64)
    entry_sizes, entry_bytes = _entry_sizes(buf, visible)
    return Profile(
        begun_us=begun,
        ended_us=ended,
        width_us=width,
        samples=_samples(visible, clock // width, sizes),
        block_sizes=_counts(sizes),
        block_bytes=int(sizes.sum()),
        entry_sizes=entry_sizes,
        entry_bytes=entry_bytes,
        holes=tuple(_holes(visible))[:_SPANS_MAX],
        overmarked=int(blocks.overmarked.sum()),
        overmarks=tuple(_runs(blocks))[:_SPANS_MAX],
        sidecar_bytes=sidecar_bytes,
    )


def _samples(visible: Blocks, buckets: I64, sizes: I64) -> Samples:
    keys, index = np.unique(buckets, return_inverse=True)
    samples = np.zeros(len(keys), SAMPLE)
    lag = (visible.last - visible.headers["dtvlsn"]).astype(np.int64)
    samples["at"] = keys
    columns = {"entries": visible.headers["count"].astype(np.int64), "bytes": sizes, "blocks": 1, "lag": lag}
    for name, column in columns.items():
        np.add.at(samples[name], index, column)
    np.maximum.at(samples["lag_max"], index, lag)
    return samples


def _counts(sizes: I64) -> I64:
    """Counts sizes by their number of bits. ``frexp`` is exact for numbers of this size."""
    return np.bincount(np.minimum(np.frexp(sizes.astype(np.float64))[1], _SIZES - 1), minlength=_SIZES).astype(np.int64)


def sampled(visible: Blocks) -> I64:
    """Returns the rows of the blocks whose entries are sampled: evenly spaced, at most 64 in a segment."""
    number = len(visible)
    if not number:
        return np.zeros(0, np.int64)
    mean = max(1, int(visible.headers["count"].mean()))
    return np.unique(
        np.linspace(0, number - 1, max(1, min(number, _BLOCKS_SAMPLED, _ENTRIES_SAMPLED // mean))).astype(np.int64)
    )


def _entry_sizes(buf: Buffer, visible: Blocks) -> tuple[I64, int]:
    chosen = sampled(visible)
    if not len(chosen):
        return np.zeros(_SIZES, np.int64), 0
    rows = Rows(buf, visible.offsets[chosen] + FRAME_BYTES, visible.headers[chosen])
    starts, ends = rows.value_cuts()
    key_starts, key_ends = rows.key_cuts()
    sizes = np.maximum(ends - starts, 0) + np.maximum(key_ends - key_starts, 0)
    return _counts(sizes), int(sizes.sum())


def _holes(visible: Blocks) -> Iterator[tuple[int, int]]:
    rows = np.flatnonzero(visible.first[1:] > visible.last[:-1] + np.uint64(1))
    for row in rows.tolist():
        yield int(visible.last[row]) + 1, int(visible.first[row + 1]) - 1


def _runs(blocks: Blocks) -> Iterator[tuple[int, int, int, int]]:
    """Yields runs of overmarked (rolled-back) blocks with consecutive VLSNs."""
    rows = np.flatnonzero(blocks.overmarked)
    if not len(rows):
        return
    joined = (np.diff(rows) == 1) & (blocks.first[rows[1:]] == blocks.last[rows[:-1]] + np.uint64(1))
    starts = np.concatenate(([0], np.flatnonzero(~joined) + 1))
    for low, high in zip(starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=True):
        first, last = int(rows[low]), int(rows[high - 1])
        yield int(blocks.offsets[first]), int(blocks.offsets[last]), int(blocks.first[first]), int(blocks.last[last])


def series_of(copies: Sequence[Sequence[Profile]], buckets_max: int = SERIES_MAX) -> list[Series]:
    """Returns one series for each copy. The buckets of all series have the same width."""
    profiles = [profile for copy in copies for profile in copy if len(profile.samples)]
    if not profiles:
        return [Series() for _ in copies]
    begun, ended = min(each.begun_us for each in profiles), max(each.ended_us for each in profiles)
    least = max(each.width_us for each in profiles)
    width = next(
        (each for each in WIDTHS_US if each >= least and ended // each - begun // each < buckets_max), WIDTHS_US[-1]
    )
    return [_series(copy, width) for copy in copies]


def _series(profiles: Iterable[Profile], width: int) -> Series:
    pieces = [_widened(profile, width) for profile in profiles if len(profile.samples)]
    if not pieces:
        return Series(width_us=width)
    samples = np.concatenate(pieces)
    keys, index = np.unique(samples["at"], return_inverse=True)
    summed = np.zeros(len(keys), SAMPLE)
    for name in ("entries", "bytes", "blocks", "lag"):
        np.add.at(summed[name], index, samples[name])
    np.maximum.at(summed["lag_max"], index, samples["lag_max"])
    return Series(
        width_us=width,
        at_us=(keys * width).tolist(),
        entries=summed["entries"].tolist(),
        bytes=summed["bytes"].tolist(),
        blocks=summed["blocks"].tolist(),
        lag_mean=np.round(summed["lag"] / summed["blocks"], 1).tolist(),
        lag_max=summed["lag_max"].tolist(),
    )


def _widened(profile: Profile, width: int) -> Samples:
    samples = profile.samples.copy()
    samples["at"] //= width // profile.width_us
    return samples


def block_histogram(profiles: Iterable[Profile]) -> Histogram:
    """Returns a histogram of the block sizes of a copy, summed over its segments."""
    return _histogram([(profile.block_sizes, profile.block_bytes) for profile in profiles])


def entry_histogram(profiles: Iterable[Profile]) -> Histogram:
    """Returns a histogram of the sampled entry sizes of a copy, summed over its segments."""
    return _histogram([(profile.entry_sizes, profile.entry_bytes) for profile in profiles])


def _histogram(parts: Sequence[tuple[I64, int]]) -> Histogram:
    counts = np.sum([counts for counts, _ in parts], axis=0) if parts else np.zeros(1, np.int64)
    sampled, size = int(counts.sum()), sum(size for _, size in parts)
    used = int(np.flatnonzero(counts)[-1]) + 1 if sampled else 0
    return Histogram(counts=counts[:used].tolist(), sampled=sampled, mean=round(size / sampled, 1) if sampled else 0.0)
