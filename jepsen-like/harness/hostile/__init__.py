"""Hostile scripts against a real group: what anybody who reaches a node's port, or its files, can do to it.

    one file a kind ─► KIND: a name, what it says of itself, the attack, what it may cost
    suite ─► a fresh group for each kind; another process watches it meanwhile; a row of the table for each

A kind attacks with what is there from outside: sockets and files.  ``kinds.py`` lists them.
"""
