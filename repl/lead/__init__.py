"""The master: which appends it takes, and what it does of the group."""
