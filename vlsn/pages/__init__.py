"""Pages of destinations: files with the unacknowledged messages of segments that are cleaned away."""
