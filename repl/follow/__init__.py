"""The roles of a node that is not the master: a replica, the founder of a group, a node that restarts with an old
disk."""
