"""The receiving side of replication: syncup, and the feed that fills this node's log. The package imports ``vlsn``
only."""
