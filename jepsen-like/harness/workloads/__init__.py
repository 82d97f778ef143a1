"""Clients at work under faults: writers that append, readers that follow, each noting its answers."""
