"""Reads and checks whole directories, without writing to them."""
