"""One suite for a seam: the real adapter and its fake both pass it."""
