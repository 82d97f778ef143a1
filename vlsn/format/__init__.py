"""The byte layouts of all files and messages: building them and reading them, without I/O."""
