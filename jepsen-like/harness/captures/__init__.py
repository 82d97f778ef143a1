"""Consumers inside the nodes under faults: what they record outside of them, and what that must show."""
