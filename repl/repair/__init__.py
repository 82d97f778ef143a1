"""The repair of damage, and the opening, cleaning and restoring of a node's log."""
