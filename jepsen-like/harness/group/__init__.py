"""The group under test: nodes as processes, the links between them, and its state as seen from outside."""
