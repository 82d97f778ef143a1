"""The command line: a file a command group, each loaded when its command runs."""
