"""Destinations at the master: delivery, acknowledgement, redelivery and dead letters of messages."""
