"""A whole node, its status, and its process."""
