"""Reads of a node's log, over HTTP and inside the node."""
