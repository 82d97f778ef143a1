"""The fakes: disks, network, clocks and threads in one process, from a seed."""
