"""Destinations at the master: what is delivered, acknowledged, delivered again, and dead."""
