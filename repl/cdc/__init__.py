"""Consumers of changes inside a node (CDC): classes of the user's that a child process of the node feeds with what is
durable.

    from repl.cdc import CdcConsumer

    class Orders(CdcConsumer):
        def on_events(self, events):
            for event in events:
                self.put(event.key, event.value)
            return True

What a consumer's own code imports is here; the node's side of it is imported by the node alone.
"""

from __future__ import annotations

from repl.cdc.consumer import CdcConsumer, CdcContext, CdcEvent, CdcEvents, CdcPosition, CdcUnavailable

__all__ = ["CdcConsumer", "CdcContext", "CdcEvent", "CdcEvents", "CdcPosition", "CdcUnavailable"]
