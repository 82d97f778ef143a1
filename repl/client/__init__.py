"""The client of a group: appends through the master, reads through any node."""
