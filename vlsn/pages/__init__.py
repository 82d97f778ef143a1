"""Pages of destinations: what is not acknowledged yet and leaves the log, in files of its own."""
