"""Exports: a log's entries as files of a lake, in batches that a manifest commits.

    log ──► Spark tasks ──► staged files ──► manifest (commit point) ──► files in place
                                               └── last VLSN and its term: where the next batch goes on

Nothing of it is imported by a node. ``docs/export.md`` tells a user, ``commit`` the protocol.
"""
