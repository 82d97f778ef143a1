"""Verifies whole log directories, without writing to them."""
