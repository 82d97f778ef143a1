"""The segment files of a directory: which of them are the log, what is in them, and how they are read."""
