"""The fakes: the world in one process, from a seed."""
