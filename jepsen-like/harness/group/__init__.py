"""The group under test: nodes as processes, the links between them, and what is seen of them from outside."""
