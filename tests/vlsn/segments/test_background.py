"""Background work that fails: it is reported, counted, and tried again with longer and longer pauses; the log goes on.

Which call ends the log and which does not is ``test_failing_calls``; here one kind of work fails again and again.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from tests.fakes.clock import FakeClock
from tests.fakes.threads import InlineThreads
from tests.vlsn.logs import DIRECTORY, Machine, Opened, Undurable, Waiting, put
from tests.vlsn.recover.crash_operations import room
from tests.vlsn.write.test_segment_rewrite import holds
from vlsn.errors import NoSegment, NoSpace, NotMaster, VlsnLogError
from vlsn.ids import Vlsn
from vlsn.limits import RETRY_S_MAX, RETRY_S_MIN, WAITING_MAX
from vlsn.segments.background import Background, Fault
from vlsn.state.options import Durability
from vlsn.verify.verify import verify
from vlsn.write.queue import RECORD_ROOM_BYTES
from vlsnlog.testing.fakes.disk import Call

FOREVER = 1 << 30
INDEX = f"{DIRECTORY}/index"


class Work:
    """A mechanism alone, and one piece of work that fails as often as it is told to."""

    def __init__(self) -> None:
        threads = InlineThreads()
        self.clock = FakeClock()
        self.ended: list[str] = []
        self.told: list[Fault] = []
        self.tried_s: list[float] = []
        self.left = 0
        self.error: BaseException = OSError(errno.EIO, "no", "file")
        self.background = Background(
            threads.worker("keeper"), threads.latch(), self.clock, ends=lambda text, _: self.ended.append(text)
        )
        self.background.told = self.told.append

    def __call__(self) -> int:
        self.tried_s.append(self.clock.monotonic_s())
        if self.left:
            self.left -= 1
            raise self.error
        return len(self.tried_s)

    def pass_s(self, seconds: float) -> None:
        """Ticks of a tenth of a second."""
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            self.background.tick()


def test_the_first_failure_is_tried_again_at_once_and_the_others_later_and_later() -> None:
    work, done, failed = Work(), list[int](), list[BaseException]()
    work.left = 10
    work.background.do("sidecar", "file", work, done.append, failed.append)
    work.pass_s(120)
    pauses = [after - before for before, after in zip(work.tried_s, work.tried_s[1:], strict=False)]
    assert pauses[0] == 0
    for number, pause in enumerate(pauses[1:]):
        due = min(RETRY_S_MAX, RETRY_S_MIN * 2**number)
        assert due - 1e-6 <= pause <= due + 0.1 + 1e-6, number
    assert done == [11] and len(failed) == 10
    assert work.background.failures["sidecar"] == 10
    assert [fault.failures for fault in work.told] == [*range(1, 11), 0]
    assert {(fault.work, fault.why, fault.errno) for fault in work.told} == {("sidecar", "file: Input/output error", 5)}
    assert not work.background.faults() and not work.ended
    work.pass_s(60)
    assert len(work.tried_s) == 11


def test_a_row_of_failures_ends_with_a_success() -> None:
    work = Work()
    for _ in range(2):
        work.left = 3
        work.background.do("sidecar", "file", work)
        work.pass_s(2)
    assert [fault.failures for fault in work.told] == [1, 2, 3, 0, 1, 2, 3, 0]


def test_what_is_forgotten_is_not_tried_again_and_what_replaces_it_is() -> None:
    work, other, heard = Work(), Work(), list[str]()
    work.left = other.left = 3
    work.background.do("sidecar", "file", work, failed=lambda _: heard.append("failed"))
    work.background.forget("sidecar", ["file", "never heard of"])
    work.pass_s(60)
    assert len(work.tried_s) == 2 and heard == ["failed"] * 2
    assert not work.background.faults()
    work.background.do("sidecar", "file", work)
    work.background.do("sidecar", "file", other)
    work.pass_s(60)
    assert len(other.tried_s) == 4 and not work.background.faults()


def test_of_what_fails_in_many_places_the_oldest_is_given_up() -> None:
    work = Work()
    work.left = FOREVER
    names = [f"{number}" for number in range(WAITING_MAX + 8)]
    for name in names:
        work.background.do("sidecar", name, work)
    assert [fault.name for fault in work.background.faults()] == names[8:]
    tried = len(work.tried_s)
    work.pass_s(RETRY_S_MIN + 0.05)
    assert len(work.tried_s) == tried + WAITING_MAX


@pytest.mark.parametrize("error", [AssertionError("ours"), RuntimeError("ours"), VlsnLogError("ours")])
def test_a_fault_of_ours_ends_the_log(error: BaseException) -> None:
    work = Work()
    work.left, work.error = 1, error
    work.background.do("sidecar", "file", work)
    assert len(work.ended) == 1 and "ours" in work.ended[0]


def test_nothing_is_tried_again_behind_the_end() -> None:
    work = Work()
    work.left = FOREVER
    work.background.do("sidecar", "file", work)
    work.background.close()
    work.background.do("sidecar", "another", work)
    work.pass_s(60)
    assert len(work.tried_s) == 3


# The standby.


def is_of(number: int, *names: str) -> Callable[[Call], bool]:
    return lambda call: call.name in names and call.path.endswith(f"{number:08}.vlog")


def is_standby(*names: str, offset: int | None = None) -> Callable[[Call], bool]:
    """Matches calls on any segment but the first two, which are there already."""
    return lambda call: (
        call.name in names
        and call.path.endswith(".vlog")
        and call.path[-13:] > "00000002.vlog"
        and offset in (None, call.offset)
    )


def fill_up(opened: Opened, held: dict[int, bytes]) -> Waiting | VlsnLogError:
    """Appends until one is refused; returns the refusal."""
    for number in range(200):
        value = f"{number}".encode().ljust(6000, b".")
        try:
            pending = opened.append(value)
        except VlsnLogError as error:
            return error
        if pending.error is not None:
            return pending.error
        assert pending.synced
        held[pending.first] = value
    return pending


def kind_of_refusal(opened: Opened) -> type[NoSpace] | None:
    refusal = opened.log.refusal
    return type(refusal) if refusal is not None else None


def is_wounded(opened: Opened) -> bool:
    return opened.log.view.index.wounded


def pass_s(opened: Opened, seconds: float) -> None:
    """A tick a second."""
    for _ in range(round(seconds)):
        opened.machine.clock.advance(1.0)
        opened.log.tick()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("call", ["create", "allocate", "write", "sync"])
@pytest.mark.parametrize("times", [2, 5, 40])
def test_a_standby_that_cannot_be_made_ends_nothing(code: int, call: str, times: int) -> None:
    """The current segment takes what fits it. Other appends are refused, safe to send again, and are taken again by
    themselves."""
    machine, held = Machine(), dict[int, bytes]()
    opened = Opened(machine)
    machine.disk.fail_at(is_standby(call), code=code, times=times)
    refused = fill_up(opened, held)
    assert isinstance(refused, NoSegment) and refused.slug == "no-segment" and refused.retry_safe and refused.transient
    assert opened.failure is None and not opened.log.no_space
    assert kind_of_refusal(opened) is NoSegment
    assert opened.entries() == held
    tail = opened.log.placement.tail
    assert tail is not None and tail.number == 2, "both segments that were there are full"
    for _ in range(40):
        pass_s(opened, RETRY_S_MAX)
    assert opened.log.life.background.failures["standby"] == times
    assert kind_of_refusal(opened) is None and not opened.log.life.background.faults()
    put(opened, held, 30, 6000)
    assert opened.entries() == held
    opened.close()
    assert opened.failure is None
    made = [path for path in machine.disk.files(DIRECTORY) if path.endswith(".vlog")]
    assert len(made) == len(opened.log.view.segments()) + 1, "of those that failed nothing is left"
    machine.kill()
    holds(machine, held)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_standby_that_does_not_take_zeros_ends_nothing(code: int) -> None:
    """The next one is taken only once it is zeroed to its end."""
    machine, held = Machine(), dict[int, bytes]()
    opened = Opened(machine)

    def zeros(call: Call) -> bool:
        return is_standby("write")(call) and call.offset > 0

    machine.disk.fail_at(zeros, code=code, times=FOREVER)
    refused = fill_up(opened, held)
    full = code != errno.EIO
    assert type(refused) is (NoSpace if full else NoSegment)
    assert bool(opened.log.no_space) == full
    assert opened.failure is None and opened.entries() == held
    pass_s(opened, 60)
    assert opened.log.life.background.failures["standby"] > 5
    assert kind_of_refusal(opened) is not None, "one that was made, and not filled, is none"
    machine.disk.mend()
    pass_s(opened, RETRY_S_MAX + 1)
    assert kind_of_refusal(opened) is None
    machine.disk.fail_at(zeros, code=code)
    written = [call for call in machine.disk.calls if zeros(call)]
    put(opened, held, 1, 6000)
    assert opened.log.placement.late_standbys == 0 and written
    put(opened, held, 20, 6000)
    assert opened.entries() == held
    machine.kill()
    holds(machine, held)


def test_what_is_left_of_standbys_that_failed_does_not_fill_the_disk() -> None:
    machine, held = Machine(), dict[int, bytes]()
    opened = Opened(machine)
    machine.disk.fail_at(is_standby("sync"), times=2)
    machine.disk.fail_at(is_standby("remove"), times=20)
    assert isinstance(fill_up(opened, held), NoSegment)
    for _ in range(15):
        pass_s(opened, RETRY_S_MAX)
    assert opened.failure is None
    assert len([path for path in machine.disk.files(DIRECTORY) if path.endswith(".vlog")]) == 3
    for _ in range(15):
        pass_s(opened, RETRY_S_MAX)
    put(opened, held, 20, 6000)
    assert opened.entries() == held


def test_a_roll_that_is_asked_for_is_passed_over_meanwhile_and_records_are_refused() -> None:
    machine, held = Machine(), dict[int, bytes]()
    opened = Opened(machine)
    put(opened, held, 1)
    machine.disk.fail_at(is_standby("create"), code=errno.EMFILE, times=FOREVER)
    rolled: list[int] = []
    for _ in range(3):
        opened.log.cycle.rotate("request", rolled.append)
        put(opened, held, 1)
    assert rolled == [2, 2, 2]
    fill_up(opened, held)
    pending = Waiting([b"x" * 40], Durability.NO_SYNC)  # as long as any fits
    while opened.log.placement.tail is not None and not opened.log.placement.is_full_for(pending.cost):
        opened.append(b"x" * 40)
    told: list[VlsnLogError] = []
    opened.log.care.checkpointer.run(failed=told.append)
    assert [type(error) for error in told] == [NoSegment]
    assert opened.failure is None
    machine.disk.mend()
    pass_s(opened, RETRY_S_MAX + 1)
    put(opened, held, 20, 6000)
    done: list[object] = []
    opened.log.care.checkpointer.run(done=done.append)
    assert len(done) == 1


def test_a_close_does_not_wait_for_a_standby() -> None:
    machine, held = Machine(), dict[int, bytes]()
    opened = Opened(machine)
    machine.disk.fail_at(is_standby("create"), code=errno.EMFILE, times=FOREVER)
    while kind_of_refusal(opened) is None or room(opened) > 2000:
        put(opened, held, 1)
    for size in range(room(opened), 0, -1):
        if not opened.log.placement.is_full_for(Waiting([bytes(size)]).cost):
            put(opened, held, 1, size)
            break
    assert room(opened) < 2 * RECORD_ROOM_BYTES, "the close's own records have no place"
    over: list[int] = []
    opened.log.close(lambda: over.append(1))
    for _ in range(4):
        opened.log.tick()
    assert over == [1] and opened.failure is None
    machine.disk.mend()
    machine.kill()
    holds(machine, held)


@pytest.mark.parametrize(("times", "survives"), [(1, True), (FOREVER, False)])
@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO])
def test_a_failed_write_without_a_standby_ends_the_log(code: int, times: int, survives: bool) -> None:
    """The standby cannot be made, again and again. Then this disk takes nothing any more, and another node leads sooner
    when this one ends."""
    machine, held = Machine(), dict[int, bytes]()
    opened = Opened(machine)
    put(opened, held, 2)
    machine.disk.fail_at(is_standby("create"), code=code, times=times)
    opened.log.cycle.rotate("request")
    put(opened, held, 1)
    machine.disk.fail_at(is_of(2, "sync"))
    pending = opened.append(b"maybe")
    assert pending.synced == survives
    said = str(opened.failure)
    assert (said == "None") if survives else ("and the next segment could not be made" in said), said
    machine.disk.mend()
    machine.kill()
    found = Opened(machine).entries()
    assert found in (
        [held | {pending.first: b"maybe"}] if survives else [held, held | {4: b"maybe"}, held | {5: b"maybe"}]
    )


# Free space.


@pytest.mark.parametrize("times", [1, 2, FOREVER])
def test_a_disk_that_does_not_tell_its_free_space_ends_nothing(times: int) -> None:
    machine, held = Machine(), dict[int, bytes]()
    opened = Opened(machine)
    machine.disk.fail_at(lambda call: call.name == "free_bytes", times=times)
    for _ in range(30):
        put(opened, held, 2, 3000)
        pass_s(opened, 2)
    assert opened.failure is None and opened.log.refusal is None
    looks = sum(call.name == "free_bytes" for call in machine.disk.calls)
    if times == FOREVER:
        (fault,) = [fault for fault in opened.log.life.background.faults() if fault.work == "space"]
        assert fault.why == f"{DIRECTORY}: Input/output error" and fault.errno == errno.EIO
        assert looks < 30, "it is asked less and less often"
    done: list[object] = []
    opened.log.care.checkpointer.run(done=done.append)
    opened.close()
    assert len(done) == 1 and opened.log.life.closed and opened.failure is None
    machine.kill()
    holds(machine, held)


def test_what_was_seen_last_holds_while_the_disk_does_not_tell() -> None:
    machine = Machine()
    opened = Opened(machine)
    machine.disk.capacity_bytes = 1 << 20
    pass_s(opened, 2)
    machine.disk.fail_at(lambda call: call.name == "free_bytes", times=3)
    machine.disk.capacity_bytes = None
    with pytest.raises(NoSpace):
        opened.append(b"no")
    opened.log.tick()
    with pytest.raises(NoSpace):
        opened.append(b"no")
    pass_s(opened, 3)
    assert opened.append(b"yes").synced


# Sidecars.


def waiting_sidecar(opened: Opened, held: dict[int, bytes]) -> None:
    """Segment 1 is sealed, and its sidecar cannot be written until ``mend``."""
    put(opened, held, 6)
    opened.machine.disk.fail_at(lambda call: call.name == "rename", times=FOREVER)
    opened.log.cycle.rotate("request")
    put(opened, held, 2)
    assert [fault.name for fault in opened.log.life.background.faults()] == ["00000001.vidx"]
    opened.machine.disk.mend()


def test_a_sidecar_that_waits_is_not_written_behind_a_rollback() -> None:
    """Its sums would be of flags that have changed since."""
    machine, held = Machine(), dict[int, bytes]()
    opened = Undurable(machine)
    waiting_sidecar(opened, held)
    opened.log.stop_sealing(NotMaster("a rollback follows"))
    done: list[VlsnLogError | None] = []
    opened.log.rollback(Vlsn(4), lambda: done.append(None), done.append)
    assert done == [None]
    pass_s(opened, RETRY_S_MAX + 1)
    assert not machine.disk.exists(f"{DIRECTORY}/00000001.vidx")
    assert not opened.log.life.background.faults()
    opened.take_term()
    assert opened.append(b"on").synced
    opened.close()
    assert verify(machine.disk, machine.stores, DIRECTORY).ok


def test_a_sidecar_that_waits_is_written_where_a_rollback_ends_behind_it() -> None:
    machine, held = Machine(), dict[int, bytes]()
    opened = Undurable(machine)
    waiting_sidecar(opened, held)
    opened.log.stop_sealing(NotMaster("a rollback follows"))
    opened.log.rollback(Vlsn(opened.log.view.range.last - 1), lambda: None, lambda _: None)
    pass_s(opened, RETRY_S_MAX + 1)
    assert machine.disk.exists(f"{DIRECTORY}/00000001.vidx")
    opened.close()
    assert verify(machine.disk, machine.stores, DIRECTORY).ok


@pytest.mark.parametrize("how", ["mended", "cleaned"])
def test_a_sidecar_that_waits_is_not_written_for_a_segment_that_is_another_or_gone(how: str) -> None:
    machine, held = Machine(), dict[int, bytes]()
    opened = Opened(machine)
    waiting_sidecar(opened, held)
    if how == "mended":
        opened.log.placement.forget_sidecar(1)
    else:
        opened.log.placement.forget_before(2)
    pass_s(opened, RETRY_S_MAX + 1)
    assert not machine.disk.exists(f"{DIRECTORY}/00000001.vidx")
    assert not opened.log.life.background.faults() and opened.failure is None


# The index.


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO])
def test_a_rotten_index_whose_segments_cannot_be_read_is_mended_later(code: int) -> None:
    machine, held = Machine(), dict[int, bytes]()
    opened = Opened(machine)
    put(opened, held, 150, 4000)
    opened.log.care.checkpointer.run()
    machine.stores.corrupt(INDEX, list(machine.stores.contents[INDEX].keys)[1])
    for vlsn in range(1, 151):
        assert opened.log.view.index.at_or_before(Vlsn(vlsn)) is not None
    assert is_wounded(opened)
    checkpoints = opened.log.care.checkpointer.last
    machine.disk.fail_at(lambda call: call.name == "open", code=code, times=FOREVER)
    pass_s(opened, 40)
    assert opened.failure is None and is_wounded(opened)
    assert opened.log.care.checkpointer.last != checkpoints, "checkpoints go on"
    assert 5 < opened.log.life.background.failures["mapping"] < 15
    put(opened, held, 2)
    machine.disk.mend()
    pass_s(opened, RETRY_S_MAX + 3)
    assert not is_wounded(opened) and not opened.log.life.background.faults()
    machine.kill()
    holds(machine, held)
