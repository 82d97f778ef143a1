"""Consumers inside the nodes under faults: their records outside of the nodes, and the checks of these."""
