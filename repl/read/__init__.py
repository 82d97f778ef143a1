"""The readers' view of a node's log."""
