"""The benchmark: works on a cluster, and the machine's own ceilings beside them."""
