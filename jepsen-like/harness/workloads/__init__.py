"""What the clients do while faults strike: writers that append, readers that follow, each noting what it was told."""
