"""The state that is kept beside a log's segments: the ``state`` store, settings, history and holds."""
