"""The HTTP surface: turns requests into responses, in types of our own, and imports no web framework."""
