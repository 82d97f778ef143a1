"""The forecast of a cleaning: which segments of a stopped node's directory would be removed, and which holds keep the
rest. The forecast writes nothing.

Holds exist only while their process runs. For a stopped node, only the limits in its own files are known: the durable
end, the positions of consumers in the state record, and the checkpoint. Once the node runs, replicas may hold more of
the log, and consumers may have advanced.
"""

from __future__ import annotations

from vlsn.errors import BadArgument, LogInUse, WrongVersion
from vlsn.format.segment import FIRST_FRAME
from vlsn.ids import Vlsn, lsn, lsn_file
from vlsn.levels import named
from vlsn.limits import STATE_MAP_BYTES
from vlsn.recover.recovery import STATE_NAME
from vlsn.seams import Disk, Stores
from vlsn.segments.directory import LOCK_NAME, survey
from vlsn.segments.reader import LogReader
from vlsn.state.aging import Allowance, Belief, believed
from vlsn.state.consumers import held_in
from vlsn.state.holds import Owner
from vlsn.state.retention import Limit, Retention, Segment, plan, wanted
from vlsn.state.state_store import StateStore, StoredEnds
from vlsn.write.checkpointer import RECOVERY
from vlsn.write.cleaner import CleaningReport
from vlsn.write.survey import Catalogue, bytes_from, sealed_us

_RECOVERY = f"{Owner.CHECKPOINT} {RECOVERY}"


def forecast(disk: Disk, stores: Stores, directory: str, retention: Retention, *, now_us: int) -> CleaningReport:
    """Reports the segments of the log in ``directory`` that a cleaning with ``retention`` would remove. Raises
    ``LogInUse`` if the node is running, ``BadArgument`` if there is no state record, and ``Damaged``."""
    if disk.is_locked(f"{directory}/{LOCK_NAME}"):
        raise LogInUse(f"{directory} belongs to a running node; ask it by its URL (`vlsnlog clean --help`)")
    limits, first_segment, trimmed_to = _limits(stores, directory)
    every = survey(disk, directory)
    numbers = [info.number for info in every if info.active and info.number >= first_segment]
    segments, _ = Catalogue(disk, directory).segments(numbers)
    total = sum(info.size for info in every if info.number >= first_segment)
    reader = LogReader(disk, directory, lambda _: 0)

    def sealed(segment: Segment) -> int:
        """Returns the time at which ``segment`` was sealed. The whole segment is read to find the time, since the index
        is not available."""
        if segment.last <= trimmed_to:
            return 1
        start = next(each.number for each in segments if each.last >= segment.last)
        return sealed_us(reader, segment.last, lsn(start, FIRST_FRAME), segment.last)

    # The forecast uses the allowance for removals by age that the log will have when it is opened next.
    belief = Belief(0, Allowance().left(len(numbers) - 1, retention.age_s, 0.0))
    try:
        found = wanted(segments, retention, total_bytes=total, sealed_us=sealed, now_us=now_us)
        aged = believed(segments, found, sealed, retention.age_s, belief)
    finally:
        reader.close()
    chosen = plan(found, [*limits, *aged.limits()], [], bytes_from=lambda vlsn: bytes_from(segments, total, vlsn))
    return CleaningReport(
        dry_run=True,
        retention_bytes=retention.bytes,
        retention_age_s=retention.age_s,
        total_bytes=total,
        first=chosen.going[-1].last + 1 if chosen.going else trimmed_to + 1,
        segments=chosen.going,
        blocked=chosen.blocked,
    )


def _limits(stores: Stores, directory: str) -> tuple[list[Limit], int, Vlsn]:
    """Returns the limits that keep the log, the segment in which the log begins, and the VLSN before the log's
    first."""
    try:
        state = StateStore(stores.open(f"{directory}/{STATE_NAME}", map_bytes=STATE_MAP_BYTES, read_only=True))
    except FileNotFoundError:
        raise BadArgument(
            f"{directory} has no state store: no checkpoint was ever made, and nothing may be removed"
        ) from None
    try:
        stored, record = StoredEnds(state.checkpoint(), state.idle_end()), state.record()
    except WrongVersion as error:
        raise named(error, f"{directory}/{STATE_NAME}") from None
    finally:
        state.close()
    limits = [Limit("durable end", Vlsn(stored.dtvlsn))]
    if (checkpoint := stored.checkpoint) is None or record is None:
        return [*limits, Limit(_RECOVERY, Vlsn(0))], 0, Vlsn(0)
    number = max(1, lsn_file(checkpoint.scan_lsn))
    limits += [Limit(f"{Owner.CONSUMER} {name}", vlsn) for name, vlsn in held_in(record.small.kept()).items()]
    return [*limits, Limit(_RECOVERY, record.vlsn, number)], record.first_segment, record.trimmed_to
