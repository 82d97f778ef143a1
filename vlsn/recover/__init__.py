"""Opens a log: turns a directory that a crash has left into a log that takes appends."""
