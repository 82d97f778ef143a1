"""Damaged blocks mended in place, and logs restored from another node."""
