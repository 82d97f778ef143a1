"""The other members, as one node knows them: their URLs and their reports.

Members are the nodes that the group's log lists. While this node knows no such list, they are the nodes that its
settings name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from feeder.majority import majority
from repl.config import NodeConfig
from repl.group.founding import Alarm
from repl.group.old_images import Heard
from vlsn.errors import Misdirected, Unreachable, VlsnLogError, WrongGroup, WrongName, WrongVersion
from vlsn.format.records import GroupEntry
from vlsn.ids import NodeName
from vlsn.levels import Levels

BY_OWN_WORD_MAX = 4
"""Members kept that have no other word than their own: the last ones."""


class Members:
    """The members, from the node's start to its stop; ``group`` gives the newest list of its log."""

    def __init__(self, config: NodeConfig, group: Callable[[], GroupEntry | None]) -> None:
        self._config = config
        self._group = group
        self._learned: dict[NodeName, str] = {}
        """A master that neither this node's log nor its settings name."""
        self._vouched: dict[NodeName, str] = {}
        """The nodes that a member's newer list names."""
        self._by_own_word: dict[NodeName, str] = {}
        """Members that say of themselves that a newer list names them. They are of use while too few of this node's own
        list are there."""
        self.heard = Heard()
        """The words of other nodes on themselves, in this process's life."""
        self._left: dict[NodeName, str] = {}
        """The places where each was looked for last and not found."""
        self.silent: dict[NodeName, str] = {}
        """Members that could not be reached when last asked, and why; each is asked every ``peers.TELL_S``."""
        self.alarms: dict[NodeName, list[Alarm]] = {}
        """Each member's alarms, by its last answer; a silent member's only alarm is its silence."""
        self.levels: dict[NodeName, Levels] = {}
        """Each member's levels, by its last answer."""
        self.strangers: dict[NodeName, str] = {}
        """Members that shared no level with this node when it last asked."""
        self.unlisted_by: dict[NodeName, str] = {}
        """Members whose last answer was that the group lists this node no more; silence unsays nothing, a feed does."""

    # Where they are.

    @property
    def listed(self) -> dict[NodeName, str]:
        """Members that may ask this node: those that its group lists, or else its settings."""
        configured, logged = self._config.members, self._logged
        return {name: self._place(name) for name in (configured if logged is None else logged)}

    @property
    def _logged(self) -> dict[NodeName, str] | None:
        """The members that the newest GROUP entry lists; None without one."""
        group = self._group()
        return None if group is None else {NodeName(each.name): each.url for each in group.members}

    def _place(self, name: NodeName) -> str:
        """Returns where ``name`` is looked for: as configured here, else as the group, or a newer list, says. It is the
        next of these once it was not found there. A name moves on, and settings are older than that."""
        if name == self._config.name:
            return self._config.url
        said = (self._config.members, self._logged or {}, self._vouched, self._learned, self._by_own_word)
        places = list(dict.fromkeys(each[name] for each in said if name in each))
        left = self._left.get(name)
        return places[(places.index(left) + 1) % len(places)] if left in places else places[0]

    @property
    def urls(self) -> dict[NodeName, str]:
        """The URLs that this node asks: of every member, and of nodes that only its settings name."""
        hints = self._by_own_word if self._by_own_word and self.are_too_few() else {}
        names = {**hints, **self._vouched, **self._learned, **(self._logged or {}), **self._config.members}
        return {name: self._place(name) for name in names}

    def are_too_few(self) -> bool:
        """Says whether those of this node's own list that can be reached elect nobody."""
        electable = self.electable
        return sum(name not in self.silent for name in electable) < majority(len(electable))

    def vouches_for_itself(self, name: NodeName) -> bool:
        """Says whether nobody but ``name`` has said that it is a member."""
        return name not in {**self._vouched, **self._learned, **self.listed, **self._config.members}

    def vouched_for(self, members: Mapping[str, str]) -> None:
        """Notes the list of a member that has a newer one than this node."""
        self._vouched = {NodeName(name): url for name, url in members.items() if url}

    def told_of_itself(self, name: NodeName, url: str) -> None:
        """Notes that ``name`` says it is at ``url``, and in a newer list than this node's."""
        if url:
            self._by_own_word.pop(name, None)
            self._by_own_word[name] = url
            while len(self._by_own_word) > BY_OWN_WORD_MAX:
                del self._by_own_word[next(iter(self._by_own_word))]

    def learn(self, master: NodeName, url: str) -> None:
        """Learns from a member who leads, and where, if this node knows nothing of that one."""
        if url and master not in {**self.listed, **self._config.members}:
            self._learned = {master: url}

    @property
    def electable(self) -> list[NodeName]:
        """The names that have a vote, as the group lists them. While this node knows no list, they are those of its
        settings."""
        group = self._group()
        if group is None:
            return sorted(self._config.members)
        return sorted(NodeName(each.name) for each in group.members if each.electable)

    def are_none(self) -> bool:
        """Says whether no other member has a vote."""
        return not set(self.electable) - {self._config.name}

    def not_at(self, name: NodeName, url: str, fault: VlsnLogError) -> None:
        """Notes that ``name`` was asked there in vain; with most faults it has answered."""
        if isinstance(fault, Unreachable | WrongName | WrongGroup | Misdirected):
            self._left[name] = url

    def answered(self, name: NodeName, fault: VlsnLogError | None = None) -> None:
        """Notes that ``name`` was asked, or has asked; with a refusal it has answered, too."""
        for kind, named in ((Unreachable, self.silent), (WrongVersion, self.strangers)):
            if isinstance(fault, kind):
                named[name] = str(fault)
            else:
                named.pop(name, None)

    def check_strangers(self) -> None:
        """Raises ``WrongVersion`` naming the members that this node cannot talk to, if there are any."""
        if self.strangers:
            raise WrongVersion("; ".join(said for _, said in sorted(self.strangers.items())))
