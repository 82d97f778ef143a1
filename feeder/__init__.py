"""The sending side of replication: feeders, their source, and the arithmetic of acknowledgements. Imports vlsn only."""
