"""Destinations at the master: messages delivered, acknowledged, delivered again, and dead."""
