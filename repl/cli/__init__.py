"""The command line: one file for each group of commands, loaded when its command runs."""
