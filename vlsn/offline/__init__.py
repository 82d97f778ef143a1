"""What an operator does with a stopped node's directory."""
