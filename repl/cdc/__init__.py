"""Consumers inside a node (CDC, change data capture): a child process of the node feeds durable entries to a user's
class.

    from repl.cdc import CdcConsumer

    class Orders(CdcConsumer):
        def on_events(self, events):
            for event in events:
                self.put(event.key, event.value)
            return True

A consumer's module imports the interface from this package. The package's other modules run in the node.
"""

from __future__ import annotations

from repl.cdc.consumer import CdcConsumer, CdcContext, CdcEvent, CdcEvents, CdcPosition, CdcUnavailable

__all__ = ["CdcConsumer", "CdcContext", "CdcEvent", "CdcEvents", "CdcPosition", "CdcUnavailable"]
