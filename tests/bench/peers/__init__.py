"""Other systems as three-node clusters on this machine: each figure names the client that drove it."""
