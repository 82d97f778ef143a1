"""The benchmark of the local log: opening, verifying and reading, without a cluster."""
