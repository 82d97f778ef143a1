"""Builds and reads the bytes of every layout, without I/O."""
