"""Hostile scripts against a real group, as of an attacker who reaches a node's port, or its files.

    one file a kind ─► KIND: a name, what it says of itself, the attack, what it may cost
    suite ─► a fresh group for each kind; another process watches it meanwhile; a row of the table for each

A kind attacks from outside, by sockets and files.  ``kinds.py`` lists them.
"""
