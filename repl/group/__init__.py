"""The members of a group: their list, their reports to each other, and the rules for believing such a report."""
