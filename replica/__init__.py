"""The receiving side: syncup, and the feed that fills this node's log.  Imports vlsn only."""
