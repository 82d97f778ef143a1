"""The receiving side of replication: syncup, and the feed that fills this node's log. Imports vlsn only."""
