"""The adapters to the real disk, threads, clock and key-value store."""
