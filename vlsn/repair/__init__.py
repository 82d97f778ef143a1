"""Repair of logs: damaged blocks are mended in place, and whole logs are restored from another node."""
