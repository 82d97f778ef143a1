"""Destinations measured: delivery and acknowledgement, paging, a backlog, and the same of other systems."""
