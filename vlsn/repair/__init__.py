"""Mends damaged blocks in place, and restores logs from another node."""
