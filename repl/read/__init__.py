"""What readers see of a node's log."""
