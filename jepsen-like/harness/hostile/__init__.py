"""Hostile scripts against a real group, like an attacker who can reach a node's port or its files.

    one file a kind ─► KIND: a name, a description, the attack, the limits of its cost
    suite ─► a fresh group for each kind; another process watches it meanwhile; a row of the table for each

A kind attacks from outside, by sockets and files.  ``kinds.py`` lists the kinds.
"""
