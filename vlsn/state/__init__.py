"""The state beside a log's segments: the `state` store, settings, history, holds."""
