"""The adapters: the real disk, threads, clock and key-value store."""
