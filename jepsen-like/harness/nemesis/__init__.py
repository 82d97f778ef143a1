"""Faults: planned from a seed, struck against the running group, and ended again."""
