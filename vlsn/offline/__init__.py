"""The operator's tools for a stopped node's directory."""
