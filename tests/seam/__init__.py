"""One test suite for a seam, which the real adapter and its fake both pass."""
