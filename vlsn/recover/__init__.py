"""Opens a log: recovers a directory after a crash or a stop, so that its log accepts appends again."""
