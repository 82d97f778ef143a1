"""The other roles: a replica, the founder of a group, a node that comes back with an old disk."""
