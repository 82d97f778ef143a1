"""An open: from a directory as a crash left it to a log that takes appends."""
