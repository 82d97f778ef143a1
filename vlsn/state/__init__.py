"""The state of a log outside of its segments: the ``state`` store, the settings, the history of entries, and holds."""
