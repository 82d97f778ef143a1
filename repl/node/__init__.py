"""A node as a whole, its status, and its process."""
