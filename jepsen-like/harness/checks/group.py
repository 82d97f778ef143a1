"""The checks of the nodes' statuses, and of processes that ended."""

from __future__ import annotations

from collections.abc import Iterator

from harness.checks.view import NEVER, Anomaly, View


def one_master_a_term(view: View) -> Iterator[Anomaly]:
    leaders: dict[int, str] = {}
    told: set[tuple[int, str]] = set()
    for op in view.statuses:
        if op.value.get("state") == "MASTER":
            term, node = op.value["term"], op.value["node"]
            first = leaders.setdefault(term, node)
            if first != node and (term, node) not in told:
                told.add((term, node))
                yield Anomaly("two-masters", node, f"leads in term {term}, as {first} did", 0, 0, op.seconds)


def nothing_falls(view: View) -> Iterator[Anomaly]:
    """Checks that terms of an incarnation, and the durable end and the level of a process, never fall. A node that
    opens or restores its log has none of them."""
    terms: dict[tuple[str, str], int] = {}
    durable: dict[tuple[str, str], int] = {}
    levels: dict[tuple[str, str], int] = {}
    for op in view.statuses:
        value = op.value
        if value["state"] == "RESTORING" or not int(value.get("incarnation") or "0", 16):
            continue
        life, self_ = (value["node"], value["process"]), (value["node"], value["incarnation"])
        if value["term"] < terms.get(self_, 0):
            detail = f"term {value['term']} after term {terms[self_]}"
            yield Anomaly("status-falls", value["node"], detail, 0, 0, op.seconds)
        if value["dtvlsn"] < durable.get(life, 0):
            detail = f"durable up to {value['dtvlsn']} after {durable[life]}"
            yield Anomaly("status-falls", value["node"], detail, value["dtvlsn"], 0, op.seconds)
        level = value.get("level", 0)
        if level and level < levels.get(life, 0):
            detail = f"level {level} after level {levels[life]}"
            yield Anomaly("status-falls", value["node"], detail, 0, 0, op.seconds)
        levels[life] = max(levels.get(life, 0), level)
        terms[self_] = max(terms.get(self_, 0), value["term"])
        durable[life] = max(durable.get(life, 0), value["dtvlsn"])


def nobody_gives_up(view: View) -> Iterator[Anomaly]:
    """Checks that no node ends by itself, is damaged, or halts without a fault of its disk."""
    hurt = {node for op in view.others if op.f == "disk" for node in op.value.get("nodes", ())}
    for op in view.others:
        if op.f == "ended" and op.value["node"] not in hurt:
            yield Anomaly("node-ended", op.value["node"], f"status {op.value['status']}: {op.error}", 0, 0, op.seconds)
    stuck: dict[str, str] = {}
    for op in view.statuses:
        node, state = op.value["node"], op.value["state"]
        bad = state in ("HALTED", "DAMAGED")
        if bad and node not in hurt and stuck.get(node) != state:
            detail = f"{state}: {op.value.get('reason', '')}"
            yield Anomaly("node-halted", node, detail, 0, 0, op.seconds)
        stuck[node] = state


def members_as_ordered(view: View) -> Iterator[Anomaly]:
    """Checks that a durable change stays, and that the list changes only by orders. An order without an answer may take
    effect at any later time."""
    known: set[str] | None = None
    may_change: set[str] = set()
    unseen: dict[str, str] = {}
    """Durable changes since the list was last reported, by name: perhaps no node led as they were made."""
    for op in [each for each in view.others if each.f == "members"]:
        value = op.value
        name, ended = value.get("name", ""), value["phase"] == "end"
        if "members" in value:
            told = set(value["members"])
            now = {name} if ended and value.get("change") in ("add", "remove") else set[str]()
            gone = [each for each, change in unseen.items() if (each in told) != (change == "add")]
            for each in set(gone) - may_change - now:
                detail = f"{unseen[each]} {each} was durable, and the members are {_words(told)}"
                yield Anomaly("lost-change", each, detail, 0, 0, op.seconds)
            if known is not None and (odd := (known ^ told) - may_change - now - unseen.keys()):
                detail = f"the members were {_words(known)}, nobody changed {_words(odd)}, and they are {_words(told)}"
                yield Anomaly("lost-change", "group", detail, 0, 0, op.seconds)
            if value.get("struck") and now - may_change and (name in told) != (value["change"] == "add"):
                detail = f"{value['change']} {name} was durable, and the members are {_words(told)}"
                yield Anomaly("lost-change", name, detail, 0, 0, op.seconds)
            known = told
            unseen.clear()
        elif ended and value.get("struck") and value.get("change") in ("add", "remove"):
            unseen[name] = value["change"]
        if ended and value.get("unknown"):
            may_change.add(name)


def nobody_else_leads(view: View) -> Iterator[Anomaly]:
    """Checks that a node durably removed in a term leads in no later term, until it is added again."""
    removed: dict[str, int] = {}
    for op in sorted((*view.others, *view.statuses), key=lambda op: op.index):
        value = op.value
        if op.f == "members" and value.get("change") == "remove" and value.get("struck") and "term" in value:
            removed[value["name"]] = value["term"]
        elif op.f == "members" and value.get("change") == "add":
            removed.pop(value["name"], None)
        elif op.f == "status" and value["state"] == "MASTER" and value["term"] > removed.get(value["node"], NEVER):
            term = removed.pop(value["node"])
            detail = f"leads in term {value['term']}, removed in term {term}"
            yield Anomaly("stranger-leads", value["node"], detail, 0, 0, op.seconds)


def _words(names: set[str]) -> str:
    return " ".join(sorted(names)) or "nobody"


CHECKS = (one_master_a_term, nothing_falls, nobody_gives_up, members_as_ordered, nobody_else_leads)
