"""The segments of a directory: their files, their contents, and how they are read."""
