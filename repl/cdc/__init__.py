"""Consumers of changes inside a node (CDC): classes of the user's that a child process of the node feeds with durable
entries.

    from repl.cdc import CdcConsumer

    class Orders(CdcConsumer):
        def on_events(self, events):
            for event in events:
                self.put(event.key, event.value)
            return True

A consumer's own code imports from here; the node alone imports the node's side.
"""

from __future__ import annotations

from repl.cdc.consumer import CdcConsumer, CdcContext, CdcEvent, CdcEvents, CdcPosition, CdcUnavailable

__all__ = ["CdcConsumer", "CdcContext", "CdcEvent", "CdcEvents", "CdcPosition", "CdcUnavailable"]
