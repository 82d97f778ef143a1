"""Who may do what: the roles of the gateway's routes, and the tokens of clients."""
