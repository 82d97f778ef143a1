"""The bytes of every layout, built and read; no I/O."""
