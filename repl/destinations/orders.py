"""Builds orders to a destination as the names and notes of a COMMIT: create, change, drop, move, pause, retry or delete
dead messages.

Each order refers to the settings that it changes, by the VLSN of the COMMIT that set them. So if two orders are sent
at once, the second is refused (``stale-term``). An order for a dropped destination is refused as well.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from repl.api import DestinationChange, Puts
from vlsn.errors import BadArgument, NotFound, StaleTerm, TooLarge, Trimmed, WrongVersion
from vlsn.format.records import AckNote
from vlsn.format.vlsn_set import VlsnSet
from vlsn.ids import NUMBER_MAX, Vlsn
from vlsn.limits import DESTINATIONS_MAX
from vlsn.state.destinations import DestinationSettings, PlacedDestination, key_of, settings_in, settings_of
from vlsn.write.local_log import LocalLog


def placed_in(log: LocalLog, name: str) -> PlacedDestination | None:
    """Returns the settings of a destination from the newest entry in the log, durable or not. Raises ``BadArgument``
    for an invalid name."""
    return settings_of(log.view.history.small.get(key_of(name)))


def found_in(log: LocalLog, name: str) -> PlacedDestination:
    """Returns the settings as ``placed_in`` does. Raises ``NotFound`` if there is no such destination."""
    placed = placed_in(log, name)
    if placed is None:
        raise NotFound(f"there is no destination {name}")
    return placed


def made(log: LocalLog, name: str, change: DestinationChange, uuid: str) -> Puts:
    """Makes the order that creates a destination. Raises ``BadArgument``, ``TooLarge``, ``Trimmed``,
    ``WrongVersion``."""
    if len(settings_in(log.view.history.small)) >= DESTINATIONS_MAX:
        raise TooLarge(f"{DESTINATIONS_MAX} destinations are there already; drop one that is not needed")
    settings = _checked(log, msgspec.convert({"uuid": uuid, **_given(change)}, DestinationSettings))
    begin = _begin(log, "end" if change.from_ is None else change.from_, "from")
    key = key_of(name)
    return Puts({key: msgspec.json.encode(settings)}, {key: 0}, {uuid: AckNote(begin=begin)})


def changed(log: LocalLog, name: str, placed: PlacedDestination, change: DestinationChange) -> Puts | None:
    """Returns the order that changes a destination, or None if nothing changes. Raises ``BadArgument``, ``StaleTerm``,
    ``WrongVersion``."""
    settings, given = placed.settings, _given(change)
    if change.from_ is not None:
        # only a new destination uses ``from``, but an invalid value is refused always
        _check_place(change.from_, "from")
    if change.uuid is not None and change.uuid != settings.uuid:
        raise StaleTerm(f"destination {name} has uuid {settings.uuid}, not {change.uuid}: it was created again")
    if given.get("prefix", settings.prefix) != settings.prefix:
        raise BadArgument(
            "prefix: the acknowledgements belong to the old prefix; drop the destination and make another one"
        )
    given.pop("uuid", None)
    wanted = _checked(log, replace(settings, **given))
    return None if wanted == settings else _set(name, placed, wanted)


def paused(name: str, placed: PlacedDestination, paused: bool) -> Puts | None:
    if placed.settings.paused == paused:
        return None
    return _set(name, placed, replace(placed.settings, paused=paused))


def dropped(name: str, placed: PlacedDestination) -> Puts:
    key = key_of(name)
    return Puts({key: None}, {key: placed.at}, {placed.settings.uuid: AckNote(over=True)})


def moved(log: LocalLog, name: str, placed: PlacedDestination, to: int | str) -> Puts:
    """Makes the order that moves a destination to ``to``. Raises ``BadArgument``, ``Trimmed``."""
    begin = _begin(log, to, "to")
    puts = _set(name, placed, placed.settings)
    return Puts(puts.values, puts.expects, {placed.settings.uuid: AckNote(begin=begin)})


def tried_again(placed: PlacedDestination, dead: VlsnSet) -> Puts:
    """Makes the order that delivers ``dead`` messages again."""
    return Puts({}, {}, {placed.settings.uuid: AckNote(again=dead.pack())})


def deleted(placed: PlacedDestination, dead: VlsnSet) -> Puts:
    """Makes the order that deletes ``dead`` messages. A deleted message counts as acknowledged."""
    return Puts({}, {}, {placed.settings.uuid: AckNote(done=dead.pack())})


def _set(name: str, placed: PlacedDestination, settings: DestinationSettings) -> Puts:
    key = key_of(name)
    return Puts({key: msgspec.json.encode(settings)}, {key: placed.at})


def _given(change: DestinationChange) -> dict[str, Any]:
    fields = msgspec.to_builtins(change)
    return {name: value for name, value in fields.items() if value is not None and name != "from"}


def _checked(log: LocalLog, settings: DestinationSettings) -> DestinationSettings:
    settings.check()
    if log.view.level < settings.level:
        raise WrongVersion(
            f"a redelivery delay and max_out need level {settings.level}, the group is at level {log.view.level}: "
            "once all members run a vlsnlog that speaks it, `vlsnlog group upgrade`"
        )
    return settings


def _check_place(asked: int | str, what: str) -> None:
    if asked not in ("start", "end") if isinstance(asked, str) else not 1 <= asked <= NUMBER_MAX:
        raise BadArgument(f"{what}: {asked!r:.40} is neither start nor end, nor a VLSN from 1 on")


def _begin(log: LocalLog, asked: int | str, what: str) -> int:
    """Returns the first VLSN that the destination delivers. The result 0 stands for the VLSN after the COMMIT that
    contains this order."""
    first, end = int(log.care.holds.floor) + 1, int(log.view.allocated) + 1
    _check_place(asked, what)
    if asked == "end":
        return 0
    if asked == "start":
        return first
    assert isinstance(asked, int)
    if asked > end:
        raise BadArgument(f"{what}: {asked} is not in 1–{end}: the log ends at VLSN {end - 1}")
    if asked < first:
        raise Trimmed(f"VLSN {asked} was cleaned away; the first still here is {first}", first=Vlsn(first))
    return asked
