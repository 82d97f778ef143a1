"""What a log keeps beside its segments: the `state` store, its settings, its history, who needs what."""
