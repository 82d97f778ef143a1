"""Pages of destinations on a node: written before the log is cleaned, read for delivery, fetched where lost."""
