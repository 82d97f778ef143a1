"""The benchmark: works on a cluster, the machine's own ceilings beside them, and the peers."""
