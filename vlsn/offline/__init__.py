"""The operator's work on a stopped node's directory."""
