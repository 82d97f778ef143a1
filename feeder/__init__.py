"""The sending side: feeders, their source, and what acknowledgements add up to.  Imports vlsn only."""
