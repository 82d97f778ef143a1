"""The sending side of replication: feeders, the source of their blocks, and the arithmetic of acknowledgements. The
package imports ``vlsn`` only."""
