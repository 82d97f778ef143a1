"""A disk and a key-value store in memory, which outlive the nodes that use them."""
