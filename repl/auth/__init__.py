"""Access control: the group's key and members' signatures; the roles of the gateway's routes, and clients' tokens."""
