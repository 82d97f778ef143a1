"""Alarms: faults of a node that need a person. A node sends its alarms in its answers to hellos, and each member shows
the alarms of all members.

n2: consumer orders is parked          ─►  hello answers of n2, every few seconds  ─►  status of n1, n2, n3
n1: destination jobs is full: drops    ─►                                  n1
"""

from __future__ import annotations

import re
from typing import Any, Final

from repl.cdc.consumers import CdcConsumers
from repl.destinations.full import FullPolicies
from repl.group.founding import ALARMS_MAX, Alarm

WHY_MAX: Final = 500
"""The most characters of a reason that an alarm shows."""
_ORDERS: Final = re.compile(r"`(vlsnlog (?:cdc|consumer) [^`]*)`")
_VERDICTS: Final = {
    "drop": "appends to it are logged, and their messages dropped",
    "block": "appends to it wait",
    "fail": "appends to it are refused",
}


def alarms_of(cdc: CdcConsumers, full: FullPolicies[Any] | None, url: str) -> list[Alarm]:
    """Lists this node's own alarms: consumers that are stuck and, on the master, destinations that are full."""
    found = [_of_consumer(name, state, _from_anywhere(why, url), url) for name, (state, why) in cdc.stuck().items()]
    if full is not None:
        found += [
            Alarm(
                "destination-full",
                name,
                f"destination {name} is full: {_VERDICTS[each.policy]}",
                each.why[:WHY_MAX],
                f"vlsnlog dest show {name} --url {url}",
            )
            for name, each in full.full_ones()
        ]
    if len(found) > ALARMS_MAX:
        more = len(found) - ALARMS_MAX + 1
        found[ALARMS_MAX - 1 :] = [Alarm("more", "", f"{more} more", "its own page shows them")]
    return found


def _of_consumer(name: str, state: str, why: str, url: str) -> Alarm:
    """Makes the alarm of a stuck consumer. Its command is the first one that ``why`` names."""
    named = _ORDERS.search(why)
    command = named[1] if named is not None else f"vlsnlog cdc resume {name} --url {url}"
    return Alarm(f"cdc-{state}", name, f"consumer {name} is {state}", why[:WHY_MAX], command)


def _from_anywhere(why: str, url: str) -> str:
    """Adds this node's URL to the commands in ``why``, because the alarm may be read at other nodes."""
    return _ORDERS.sub(rf"`\1 --url {url}`", why)
