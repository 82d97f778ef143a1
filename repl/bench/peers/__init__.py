"""The peers: etcd, PostgreSQL and Redis as three-node clusters on this machine, beside ours.

All are up at once, on loopback and one file system, and are measured in turns, so that what else the
machine does falls on all alike.  Each figure names the client that drove it.  What is not installed is
named and left out.
"""
