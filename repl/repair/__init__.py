"""Repairs damage of a node's log. Also opens, cleans and restores the log."""
