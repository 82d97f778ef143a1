"""The other members, as one node knows them: their URLs and their reports.

The members are the nodes that the group's log lists. A node that knows no list of members uses the nodes in its
settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import structs

from feeder.majority import majority
from repl.config import NodeConfig
from repl.group.founding import Alarm, Answer
from repl.group.old_images import Heard
from vlsn.errors import Misdirected, Unreachable, VlsnLogError, WrongGroup, WrongName, WrongVersion
from vlsn.format.records import GroupEntry
from vlsn.ids import NodeName
from vlsn.levels import SIGNED, Levels

AWAITED_S: Final = 30.0
"""The seconds for which the silence of a member is expected: after this node's start, and after the member left in
order. From then on a silent member needs a look."""
BY_OWN_WORD_MAX = 4
"""The most nodes that are remembered because they themselves claim to be members. If there are more, the latest nodes
are kept."""


class Members:
    """The other members, from the node's start to its stop. ``group`` returns the newest list of members in the node's
    log."""

    def __init__(self, config: NodeConfig, group: Callable[[], GroupEntry | None], *, now: float = 0.0) -> None:
        self._config = config
        self._group = group
        self._began = now
        self._reached: set[NodeName] = set()
        """Members that have answered or called since this process started."""
        self._left_at: dict[NodeName, float] = {}
        """When each member last handed mastership over, or ended its term in order."""
        self._learned: dict[NodeName, str] = {}
        """The URL of a master that neither this node's log nor its settings contain."""
        self._vouched: dict[NodeName, str] = {}
        """Nodes in another member's list, if that list is newer than this node's."""
        self._by_own_word: dict[NodeName, str] = {}
        """Nodes that claim to be in a newer list of members. Such nodes are asked only while too few members of this
        node's own list can be reached."""
        self.heard = Heard()
        """The reports of other nodes about themselves, since this process started."""
        self._left: dict[NodeName, str] = {}
        """For each node that was not found, the URL where it was last looked for."""
        self.silent: dict[NodeName, str] = {}
        """Members that could not be reached when last asked, with the reason. Each member is asked once in
        ``peers.TELL_S`` seconds."""
        self.alarms: dict[NodeName, list[Alarm]] = {}
        """Each member's alarms, from its last answer. A silent member has one alarm, its silence."""
        self.levels: dict[NodeName, Levels] = {}
        """Each member's levels, from its last answer."""
        self.unsigned: set[NodeName] = set()
        """Listed members whose last call or answer was not signed."""
        self.keys: dict[NodeName, tuple[str, ...]] = {}
        """The IDs of the keys that each member accepts. The first is the ID of the key with which it signs."""
        self.strangers: dict[NodeName, str] = {}
        """Members that shared no level with this node when it last asked them."""
        self.unlisted_by: dict[NodeName, str] = {}
        """Members whose last answer said that the group no longer lists this node. A member's later silence changes
        nothing; a feed from a master clears the list."""

    # URLs.

    @property
    def listed(self) -> dict[NodeName, str]:
        """The members whose requests this node accepts: those that its group lists, otherwise those in its settings."""
        configured, logged = self._config.members, self._logged
        return {name: self._place(name) for name in (configured if logged is None else logged)}

    @property
    def _logged(self) -> dict[NodeName, str] | None:
        """The members that the newest GROUP entry lists, or None if there is no entry."""
        group = self._group()
        return None if group is None else {NodeName(each.name): each.url for each in group.members}

    def _place(self, name: NodeName) -> str:
        """Returns the URL of ``name`` from the settings, from the group's list, or from a newer list, in this order.
        If the node was last not found at a URL, the next one is returned, because a node may move and settings may
        be old."""
        if name == self._config.name:
            return self._config.url
        said = (self._config.members, self._logged or {}, self._vouched, self._learned, self._by_own_word)
        places = list(dict.fromkeys(each[name] for each in said if name in each))
        left = self._left.get(name)
        return places[(places.index(left) + 1) % len(places)] if left in places else places[0]

    @property
    def urls(self) -> dict[NodeName, str]:
        """The URLs that this node calls: of all members, and of nodes that only its settings name."""
        hints = self._by_own_word if self._by_own_word and self.are_too_few() else {}
        names = {**hints, **self._vouched, **self._learned, **(self._logged or {}), **self._config.members}
        return {name: self._place(name) for name in names}

    def are_too_few(self) -> bool:
        """Returns whether too few members of this node's own list can be reached to elect a master."""
        electable = self.electable
        return sum(name not in self.silent for name in electable) < majority(len(electable))

    def vouches_for_itself(self, name: NodeName) -> bool:
        """Returns whether no node but ``name`` itself has claimed that ``name`` is a member."""
        return name not in {**self._vouched, **self._learned, **self.listed, **self._config.members}

    def vouched_for(self, members: Mapping[str, str]) -> None:
        """Notes another member's list of members, which is newer than this node's list."""
        self._vouched = {NodeName(name): url for name, url in members.items() if url}

    def told_of_itself(self, name: NodeName, url: str) -> None:
        """Notes that ``name`` claims to be at ``url``, and to be in a newer list than this node's."""
        if url:
            self._by_own_word.pop(name, None)
            self._by_own_word[name] = url
            while len(self._by_own_word) > BY_OWN_WORD_MAX:
                del self._by_own_word[next(iter(self._by_own_word))]

    def learn(self, master: NodeName, url: str) -> None:
        """Notes the master and its URL from a member's answer, if neither this node's log nor its settings name that
        master."""
        if url and master not in {**self.listed, **self._config.members}:
            self._learned = {master: url}

    @property
    def electable(self) -> list[NodeName]:
        """The names of members with a vote, from the group's list. While this node knows no list, the names in its
        settings."""
        group = self._group()
        if group is None:
            return sorted(self._config.members)
        return sorted(NodeName(each.name) for each in group.members if each.electable)

    def are_none(self) -> bool:
        """Returns whether no other member has a vote."""
        return not set(self.electable) - {self._config.name}

    def not_at(self, name: NodeName, url: str, fault: VlsnLogError) -> None:
        """Notes that ``name`` was not found at ``url``. Faults that are an answer of the node itself change nothing."""
        if isinstance(fault, Unreachable | WrongName | WrongGroup | Misdirected):
            self._left[name] = url

    def answered(self, name: NodeName, fault: VlsnLogError | None = None) -> None:
        """Notes that ``name`` has answered or called. A refusal (``fault``) is an answer, too."""
        if not isinstance(fault, Unreachable):
            self._reached.add(name)
        for kind, named in ((Unreachable, self.silent), (WrongVersion, self.strangers)):
            if isinstance(fault, kind):
                named[name] = str(fault)
            else:
                named.pop(name, None)

    def has_left(self, name: NodeName, now: float) -> None:
        """Notes that ``name`` hands mastership over, or has ended its term in order: it may be stopping."""
        self._left_at[name] = now

    def awaits(self, name: NodeName, now: float) -> bool:
        """Returns whether the silence of ``name`` is expected for now: this node has just started and has not reached
        it yet, or the member has just left in order."""
        since = self._left_at.get(name, self._began if name not in self._reached else None)
        return since is not None and now - since < AWAITED_S

    def met(self, name: str, signed: bool) -> None:
        """Notes whether the last call or answer of a member was signed."""
        self.unsigned.discard(NodeName(name))
        if not signed and name in self.listed:
            self.unsigned.add(NodeName(name))

    def vetted(self, name: NodeName, answer: Answer) -> Answer:
        """Returns the answer of ``name``, with corrected levels. If the node does not sign its answers, the level at
        which every call must be signed is removed from its levels."""
        if name not in self.unsigned or answer.levels.max < SIGNED:
            return answer
        return structs.replace(answer, levels=answer.levels.below(SIGNED))

    def check_strangers(self) -> None:
        """Raises ``WrongVersion`` if some members share no level with this node. The error names all members without a
        common level."""
        if self.strangers:
            raise WrongVersion("; ".join(said for _, said in sorted(self.strangers.items())))
