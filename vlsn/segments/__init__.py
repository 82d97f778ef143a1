"""The segments of a directory: which files they are, what lies in them, and how they are read."""
