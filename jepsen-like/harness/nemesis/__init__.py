"""Faults: planned from a seed, applied to the running group, and ended again."""
