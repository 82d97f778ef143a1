"""The token that a client shows to nodes, and the addresses to which it may be sent without TLS."""
