"""Clients under faults: writers that append and readers that follow; each notes its answers."""
