"""Pages of destinations: files of unacknowledged messages that leave the log."""
