"""Elections: the pure rules, and a node's part in them."""
