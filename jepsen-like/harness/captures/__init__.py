"""Consumers inside the nodes under faults: their records, kept outside of the nodes, and the checks of these."""
