"""The audit beside a loop of checksums in C, its memory, and how it grows: ``python -m repl.bench.audit``."""
