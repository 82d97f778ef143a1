"""The operator's tools for the directory of a stopped node."""
