"""What a node does about damage, and how its log is opened, cleaned and restored."""
