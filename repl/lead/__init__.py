"""The master: which appends it accepts, and how it serves the group."""
