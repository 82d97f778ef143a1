"""The deliveries of all destinations during one master's term: one ``Delivery`` for each destination.

    durable end rises ─► acknowledgements are folded ─► waiting calls are woken
    tick              ─► messages that were out for too long come back

To *fold* an entry is to apply it to the tables that the log defines. A new master delivers messages only once its
own first entry is durable and folded, because only then does it have all acknowledgements of earlier terms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from repl.api import Appended
from repl.destinations.delivered import Dead, Source
from repl.destinations.delivery import Delivery, DeliveryParts
from repl.destinations.full import FullPolicies
from repl.destinations.gauges import PERIOD_S, SAMPLED_ROWS
from repl.destinations.limits import REASON_BYTES_MAX
from repl.destinations.notes import Notes, Submit
from vlsn.errors import NotFound, NotMaster, ProducersMissing, VlsnLogError, WrongVersion
from vlsn.format.messages import dead_letter
from vlsn.format.records import AckNote, CommitEntry
from vlsn.format.submission import Transaction, Values
from vlsn.format.vlsn_set import VlsnSet
from vlsn.ids import Vlsn
from vlsn.levels import DESTINATIONS
from vlsn.pages.source import PageSource
from vlsn.state.destinations import PREFIX, DestinationSettings, key_of, settings_of
from vlsn.write.local_log import LocalLog

FOLD_S = 10.0
"""The most seconds that a call waits while a new master folds the acknowledgements of earlier terms."""


class Lead(Protocol):
    """The master's term, as deliveries use it."""

    @property
    def log(self) -> LocalLog: ...

    @property
    def start(self) -> Vlsn: ...

    @property
    def has_ended(self) -> bool: ...

    async def read_index(self) -> Vlsn: ...


class Deliveries:
    """The deliveries of one master's term. ``close`` is called when the term ends."""

    def __init__(
        self,
        lead: Lead,
        source: Source,
        submit: Submit,
        *,
        event: Callable[..., None],
        full: FullPolicies[Any],
        pages: Callable[[], PageSource | None] = lambda: None,
    ) -> None:
        self._lead = lead
        self._log = lead.log
        self._submit = submit
        self.full = full
        self.notes = Notes(submit, self._log.view.fold_acks)
        self._parts = DeliveryParts(
            source=source,
            pages=pages,
            table=self._log.view.history.acks.folded.get,
            notes=self.notes,
            confirm=self._confirm,
            bury=self._bury,
            freed=full.release,
            event=event,
        )
        self._of: dict[str, Delivery] = {}
        """The deliveries by uuid."""
        self._settings: dict[str, tuple[int, DestinationSettings]] = {}
        self._loop = asyncio.get_running_loop()
        self._looking = self._loop.create_task(self._look_at_oldest(), name="oldest messages")

    def __iter__(self) -> Iterator[Delivery]:
        return iter(list(self._of.values()))

    def known(self, uuid: str) -> Delivery | None:
        """Returns the delivery of a destination, or None if no call of this term has used the destination."""
        return self._of.get(uuid)

    async def of(self, name: str) -> Delivery:
        """Returns the delivery of a destination. Raises ``NotFound``, ``BadArgument``, ``NotMaster``,
        ``ProducersMissing``, or ``WrongVersion`` if the group's level is too low for destinations."""
        key = key_of(name)
        await self.settle_in()
        settings = self._settings_of(name, key)
        if settings is None:
            raise NotFound(f"there is no destination {name}")
        delivery = self._met(name, settings)
        if delivery is None:
            raise NotFound(f"destination {name} is being created")
        delivery.follow(settings)
        return delivery

    def _settings_of(self, name: str, key: str) -> DestinationSettings | None:
        """Returns the current settings of a destination. Decodes the settings only if they have changed."""
        history = self._log.view.history
        kept, held = history.small.at(key, history.acks.folded_to), self._settings.get(name)
        if kept is None:
            self._settings.pop(name, None)
            return None
        if held is None or held[0] != kept.vlsn:
            placed = settings_of(kept)
            if placed is None:
                return None
            held = self._settings[name] = int(placed.at), placed.settings
        return held[1]

    def _met(self, name: str, settings: DestinationSettings) -> Delivery | None:
        """Returns the delivery of a destination, and creates it if there is none. Returns None while the table of
        acknowledgements does not contain the destination."""
        delivery = self._of.get(settings.uuid)
        if delivery is None and self._log.view.history.acks.folded.get(settings.uuid) is not None:
            delivery = self._of[settings.uuid] = Delivery(self._parts, name, settings)
        return delivery

    def check_level(self) -> None:
        """Raises ``WrongVersion`` while the group's level is too low for destinations."""
        if (level := self._log.view.level) < DESTINATIONS:
            raise WrongVersion(
                f"destinations need level {DESTINATIONS}, the group is at level {level}: once all members run a "
                "vlsnlog that speaks it, `vlsnlog group upgrade`"
            )

    async def settle_in(self) -> None:
        """Returns once all acknowledgements of earlier terms are folded."""
        log, lead = self._log, self._lead
        if lacks_to := log.view.history.small.lacks_to:
            raise ProducersMissing(
                f"this node has lost the small state up to VLSN {lacks_to}; it asks the other members"
            )
        if log.view.history.acks.folded_to >= lead.start:
            return
        self.check_level()
        await lead.read_index()
        deadline = self._loop.time() + FOLD_S
        while log.view.history.acks.folded_to < lead.start:
            log.view.fold_acks()
            if lead.has_ended or self._loop.time() >= deadline:
                raise NotMaster("this node does not have all acknowledgements of earlier masters yet; try again")
            await asyncio.sleep(0.005)

    async def _confirm(self) -> None:
        await self._lead.read_index()

    # Events.

    def rose(self) -> None:
        """Wakes waiting calls after the durable end rose and the acknowledgements up to the new end are folded."""
        for delivery in self._of.values():
            delivery.rose()

    def followed(self) -> None:
        """Applies changed settings to the deliveries, once the change is folded."""
        self.tick()

    def tick(self) -> None:
        """Takes back messages that were out for too long. Called a few times a second."""
        self._log.view.fold_acks()
        now, acks = self._loop.time(), self._log.view.history.acks
        if not self._of and not len(acks):
            return
        self._meet_all()
        rows_left = SAMPLED_ROWS
        for uuid, delivery in list(self._of.items()):
            if acks.folded.get(uuid) is None:
                delivery.close(NotFound(f"destination {delivery.name} was dropped"))
                del self._of[uuid]
                self.notes.forget(delivery)
                self.full.forget(uuid)
                continue
            delivery.follow(self._newest(delivery))
            self.full.follow(delivery)
            delivery.tick(now)
            if rows_left > 0 and delivery.incoming.is_due(now):
                rows_left -= delivery.incoming.look(now, self._log.view.ring, delivery.wanted)
        self.full.release()  # if the first held append has timed out, it must not block the others

    async def _look_at_oldest(self) -> None:
        """Periodically finds the oldest unacknowledged message of each destination."""
        while True:
            await asyncio.sleep(PERIOD_S)
            for delivery in self:
                try:
                    await delivery.look_at_oldest()
                except (VlsnLogError, OSError):
                    continue  # a call that takes messages reports the same error

    def _meet_all(self) -> None:
        """Creates the deliveries of all destinations, even those that no call has used yet."""
        small, acks = self._log.view.history.small, self._log.view.history.acks
        if acks.folded_to < self._lead.start or small.lacks_to:
            return
        for key in small:
            if key.startswith(PREFIX):
                name = key.removeprefix(PREFIX)
                settings = self._settings_of(name, key)
                if settings is not None:
                    self._met(name, settings)

    def _newest(self, delivery: Delivery) -> DestinationSettings:
        settings = self._settings.get(delivery.name, (0, delivery.settings))[1]
        return settings if settings.uuid == delivery.uuid else delivery.settings

    def close(self) -> None:
        gone = NotMaster("this node is no longer the master; the next master delivers the unacknowledged messages")
        self._looking.cancel()
        self.notes.close()
        self.full.close()
        for delivery in self._of.values():
            delivery.close(gone)

    # Dead letters.

    def _bury(self, delivery: Delivery, dead: list[Dead]) -> None:
        """Moves messages to the dead letters. One transaction appends the dead letters and acknowledges the original
        messages."""
        settings, vlsns = delivery.settings, VlsnSet.of([each.vlsn for each in dead])
        letters = [
            dead_letter(
                delivery.name,
                each.vlsn,
                each.attempts,
                each.reason.encode()[:REASON_BYTES_MAX].decode("utf-8", "ignore"),
            )
            for each in dead
        ]
        note = AckNote(done=vlsns.pack(), dead=vlsns.pack())
        commit = CommitEntry(acks={delivery.uuid: note}).encode()
        part = Values(letters, [settings.dead_letter.encode()] * len(letters))

        def done(result: Appended | VlsnLogError) -> None:
            if isinstance(result, Appended):
                self._log.view.fold_acks()
                delivery.buried(vlsns)
                self._parts.event("destination.dead", destination=delivery.name, messages=len(dead), vlsn=dead[0].vlsn)
            else:
                delivery.given_back(vlsns)

        try:
            self._submit(Transaction([part], commit), done)
        except VlsnLogError as error:
            self._loop.call_later(1.0, done, error)
