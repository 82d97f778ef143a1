"""How the members of a group know each other: the group's key, signatures of calls and answers, and sessions."""
