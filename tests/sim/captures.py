"""The record of a simulation's CDC consumers: the events that each received, its promises, and positions on disks.

It notes every event that a consumer receives, every True that it returns, and every message to its child.  It reads
position files by offsets only. A *life* is one child process of a consumer.

    an event of a consumer is durable, and equals that entry         at each event
    within a life no event is left out or comes twice                the same
    a position on a medium, or in the group, leaves out nothing      whenever one is stored
        that was not promised by a True, and never falls,
        unless an operator moved it
    a life begins at the position that is on the medium, or          at each START
        became durable in the group
    a position that is reported to a child as stored is stored       at each COMMITTED
    of two masters' consumers only one continues: each position      at each that becomes durable
        comes from a life that began at the one before, or set it
    a position is made anew only on a disk without one               whenever one is stored
    after the loss of a position with its disk no life begins        at each START
        until an operator sets it
    a consumer that an operator has paused has no life until it is   the same
        resumed, but on a master that was replaced
    lost events are named, from the first unpromised one on          when one is parked
    everything durable is promised everywhere                        at the end
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING

import msgspec

from repl.cdc.consumer import CdcPosition
from repl.cdc.messages import Start
from vlsn.format.block import Entry
from vlsn.format.checksum import crc

if TYPE_CHECKING:
    from repl.cdc_settings import CdcSettings
    from tests.sim.group import SimGroup, SimNode

SLOT_BYTES = 4096
_SEQUENCE_AND_NEXT = Struct("<16xQQ")


@dataclass(slots=True, eq=False)
class Place:
    """One consumer with one position: on one node, or in the group (``node`` is empty then)."""

    settings: CdcSettings
    node: str
    begun: bool = False
    stored: int = 0
    """The last position that reached the medium, or became durable."""
    promised: int = 0
    """The last VLSN up to which it has returned True."""
    ever: int = 0
    """The highest ``promised`` at any START, also before an operator moved the position back."""
    told: int = 0
    """The highest position reported to a child as stored: no event below it may come again."""
    moves: list[int] = field(default_factory=list)
    """Positions that an operator requested and that are not stored yet."""
    older: bool = False
    """True if its disk was replaced by an image, or its file damaged: it may have an older position."""
    fresh: bool = False
    """Its disk was replaced by an empty one."""
    lost: bool = False
    """True if it has had a life, its position was lost with its disk, and no operator has set it since."""
    paused: int = 0
    """The term in which its pause was confirmed; 0 if it is not paused, or if the pause was lost with its disk."""
    own: CdcPosition | None = None
    """The position that the consumer keeps itself, with its results."""
    lives: list[Life] = field(default_factory=list)
    lived: int = 0
    """Its lives before its file was made."""
    positions: list[int] = field(default_factory=list)
    """The group's positions that became durable, in order."""
    set_at: int = 0
    """The VLSN that set the last of them."""

    def __str__(self) -> str:
        return f"{self.settings.name} on {self.node}" if self.node else f"{self.settings.name}"


@dataclass(slots=True, eq=False)
class Life:
    """One child of a consumer, from its START on."""

    place: Place
    node: str
    begins: int
    last: int | None
    """The last VLSN that it must receive, if some are to come again."""
    given: int = 0
    """The last VLSN that it received, or the VLSN before the first."""
    promises: list[int] = field(default_factory=list)
    """The last VLSN that it had received, at each True."""


def stored_in(data: bytes | bytearray | None) -> int:
    """Reads a position file: returns ``next`` of the slot with the higher sequence among those with a right checksum; 0
    without any."""
    found = [(0, 0)]
    for at in range(0, len(data or b""), SLOT_BYTES):
        slot = bytes((data or b"")[at : at + SLOT_BYTES])
        if slot[:8] == b"VLSNCDCP" and crc(slot[:-4]) == int.from_bytes(slot[-4:], "little"):
            found.append(_SEQUENCE_AND_NEXT.unpack_from(slot))
    return max(found)[1]


class Captures:
    def __init__(self, group: SimGroup, settings: tuple[CdcSettings, ...]) -> None:
        self.group = group
        self.settings = {each.name: each for each in settings}
        self.places: dict[tuple[str, str], Place] = {}
        self._looked_at = 0
        """The number of checked states of the group's small state."""
        self.anew = 0
        """Consumers that began anew on an empty disk."""

    def place(self, node: str, name: str) -> Place:
        settings = self.settings[name]
        key = ("" if settings.run_on == "master" else node, name)
        if key not in self.places:
            self.places[key] = Place(settings, key[0])
        return self.places[key]

    @property
    def last(self) -> int:
        """The last durable DATA entry."""
        vlsns = self.group.watch.ledger.vlsns
        return vlsns[-1] if vlsns else 0

    def after(self, vlsn: int) -> int:
        """Returns the next DATA entry after ``vlsn``: the highest position of a consumer with all entries before."""
        ledger = self.group.watch.ledger
        at = bisect_right(ledger.vlsns, vlsn)
        return ledger.vlsns[at] if at < len(ledger.vlsns) else max(ledger.last, vlsn) + 1

    def _hold(self, holds: bool, said: str) -> None:
        self.group.watch.hold(holds, said)

    # Messages to a child, and its actions.

    def starts(self, node: str, start: Start) -> Life:
        place = self.place(node, start.name)
        life = Life(place, node, start.next, start.last, given=start.next - 1)
        place.lives.append(life)
        self._hold(
            not place.paused or (not place.node and start.term < place.paused),
            f"{place} begins at {start.next} on {node}, in term {start.term}, and is paused since term {place.paused}",
        )
        if start.last is not None:
            return life
        if place.node:
            self._starts_on_node(place, start.next)
        else:
            self.look()
            were = place.positions
            self._hold(start.next in were, f"{place} begins at {start.next} on {node}; it was at {were[-9:]}")
        return life

    def _starts_on_node(self, place: Place, begins: int) -> None:
        disk = self.group.machines[place.node].disk
        lies = stored_in(disk.on_medium(f"/{place.node}/cdc/{place.settings.name}.position"))
        self._hold(lies == begins, f"{place} begins at {begins}; on its medium lies {lies}")
        self._hold(not place.lost, f"{place} begins anew at {begins}, though it has had a life before")
        place.ever = max(place.ever, place.promised)
        if place.older:  # it may be from before an operator moved it back
            place.older, place.told, place.promised = False, begins, max(place.promised, min(place.ever, begins - 1))
        self._hold(begins >= place.told, f"{place} begins at {begins}; {place.told} was told to be stored")
        self._hold(begins <= self.after(place.promised), f"{place} begins at {begins}, behind {place.promised}")

    def begins_at_own(self, life: Life, *, moved: bool) -> CdcPosition | None:
        """Returns the consumer's own position, unless an operator has moved it."""
        place = life.place
        if moved:
            place.own = None
        if place.own is None or life.last is not None:
            return None
        life.given = place.own.next - 1
        place.promised = max(place.promised, life.given)
        return place.own

    def keeps(self, life: Life, own: CdcPosition) -> None:
        """Notes that the consumer stores its own position, with its results."""
        said = f"{life.place} keeps {own}, and was given all up to {life.given}"
        self._hold(life.given < own.next <= self.after(life.given), said)
        life.place.own = own

    def given(self, life: Life, event: Entry) -> None:
        """Notes and checks an event that a consumer receives."""
        durable = self.group.watch.ledger.entries.get(event.vlsn)
        if durable != event:
            raise self.group.watch.violated(f"{life.place} was given {event}; durable is {durable}")
        due = self.after(life.given)
        if event.vlsn != due or event.vlsn > (life.last or event.vlsn):
            said = f"{life.place} was given VLSN {event.vlsn} where {due} was due, up to {life.last or 'the end'}"
            raise self.group.watch.violated(said)
        life.given = event.vlsn

    def promises(self, life: Life) -> None:
        """Notes that a consumer returns True after the last event that it received."""
        life.promises.append(life.given)
        if life.last is None:
            life.place.promised = max(life.place.promised, life.given)

    def committed(self, life: Life, number: int) -> None:
        """Checks the report to a child that its commits up to ``number`` are stored."""
        place = life.place
        if life.last is not None:
            return
        said = len(life.promises)
        self._hold(number <= said, f"{place} is told that its commit {number} is stored; it has said True {said} times")
        promised = life.promises[number - 1]
        if place.node:
            disk = self.group.machines[place.node].disk
            there = [stored_in(disk.on_medium(f"/{place.node}/cdc/{place.settings.name}.position"))]
            place.told = max(place.told, promised + 1)
        else:
            self.look()
            there = place.positions
        if place.own is None:
            self._hold(max(there, default=0) > promised, f"{place} is told that {promised + 1} is stored: {there[-3:]}")

    # Positions.

    def synced(self, node: str, path: str) -> None:
        """Notes that a file of that node is on its medium."""
        folder, _, file = path.rpartition("/")
        name, _, kind = file.partition(".position")
        if not folder.endswith("/cdc") or name not in self.settings:
            return
        place, disk = self.place(node, name), self.group.machines[node].disk
        if kind == ".new" and path not in disk.files(folder):  # it was opened by this name, and renamed since
            path, kind = path.removesuffix(kind), ""
        lies = stored_in(disk.durable_content(path))
        if kind == ".new" and place.begun and lies not in place.moves:
            # A process may end before its first file has its name.
            is_fresh = place.fresh or len(place.lives) == place.lived
            self._hold(is_fresh, f"{place} begins anew at {lies}; it was at {place.stored}")
            self.anew += 1
            place.begun = False
        place.lost &= lies not in place.moves
        if lies == 0 and place.older:
            return  # damaged: the process that opened it will report it
        if not place.begun:
            place.begun, place.fresh, place.older = True, False, False
            place.lived = len(place.lives)
            place.stored, place.told, place.promised = lies, lies, lies - 1
            return
        if lies == place.stored or (place.older and lies not in place.moves):
            place.stored = lies
            return
        self._moves(place, lies, not place.older and place.stored <= lies <= self.after(place.promised))

    def _moves(self, place: Place, position: int, is_due: bool) -> None:
        if not is_due:
            said = f"{place} is at {position}, from {place.stored}; promised is {place.promised}, moves {place.moves}"
            self._hold(position in place.moves, said)
            if position in place.moves:
                place.moves.remove(position)
            place.ever = max(place.ever, place.promised)
            place.promised, place.told = position - 1, position
        place.stored = position

    def look(self) -> None:
        """Checks the group's positions that have become durable."""
        states = self.group.watch.transactions.of_small_state
        of_group = [self.place("", name) for name, each in self.settings.items() if each.run_on == "master"]
        for _, small in states[self._looked_at :]:
            for place in of_group:
                kept = small.get(f"consumer/cdc.{place.settings.name}")
                if kept is not None and kept.vlsn != place.set_at:
                    place.set_at = int(kept.vlsn)
                    self._set_in_group(place, int(msgspec.json.decode(kept.value)["next"]))
        self._looked_at = len(states)

    def _set_in_group(self, place: Place, position: int) -> None:
        due = not place.begun or any(self._goes_on(each, place.stored, position) for each in place.lives)
        if not place.begun:
            place.begun, place.promised = True, position - 1
        self._moves(place, position, due)
        place.positions.append(position)

    def _goes_on(self, life: Life, before: int, position: int) -> bool:
        """Says whether that life may have set a position after ``before``, which it had read."""
        if life.last is not None or not self._promised(life, position):
            return False
        return life.begins == before or self._promised(life, before)

    def _promised(self, life: Life, position: int) -> bool:
        at = bisect_left(life.promises, position)
        return at > 0 and position <= self.after(life.promises[at - 1])

    # Faults of disks, and orders of operators.

    def replaced(self, node: str) -> None:
        """Notes that the machine has another disk, or an older image of its disk."""
        disk = self.group.machines[node].disk
        for name in self.settings:
            place = self.place(node, name)
            if place.node and place.begun:
                place.older, place.paused = True, 0
                gone = disk.on_medium(f"/{node}/cdc/{name}.position") is None
                place.fresh |= gone
                place.lost = gone and any(life.last is None for life in place.lives)

    def damaged(self, place: Place) -> None:
        place.older, place.paused = True, 0

    def paused(self, place: Place, term: int) -> None:
        """Notes that a node in ``term`` has confirmed a pause to an operator."""
        place.paused = term

    def resumes(self, place: Place) -> None:
        """Notes that an operator requests a resume."""
        place.paused = 0

    def parked(self, node: SimNode, name: str, why: str) -> None:
        """Compares a node's report of lost events with the promises."""
        place, (first, last) = self.place(node.name, name), node.cdc.records[name].lost
        self._hold("internal:" not in why, f"{place} is parked: {why}")
        if last:
            said = f"{place} is parked, and has lost VLSNs {first} to {last}; promised is {place.promised}"
            self._hold(first <= self.after(place.promised), said)
            log = node.opened().log
            goes_to = max(
                log.view.range.first - 1, log.care.holds.floor
            )  # a cleaning may be under way, or wait for its disk
            self._hold(goes_to >= last and f"--to {last + 1}" in why, f"{said}: {why}")

    def asked(self, place: Place, to: int) -> None:
        """Notes that an operator requests a move."""
        place.moves.append(to)

    def refused(self, place: Place, to: int) -> None:
        if to in place.moves:
            place.moves.remove(to)

    # The end.

    def lacks(self) -> list[str]:
        """Lists the consumers that have not received, or not promised, everything durable."""
        found = []
        for node in self.group.names:
            for name in self.settings:
                place = self.place(node, name)
                if place.promised < self.last or not place.begun:
                    found.append(
                        f"{place}: {place.promised} of {self.last}, {self.group.nodes[node].cdc.told_of(name)}"
                    )
        return found
