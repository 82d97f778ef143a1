"""The benchmark: measures kinds of work on a cluster, and the speed of the machine's disk and sockets."""
