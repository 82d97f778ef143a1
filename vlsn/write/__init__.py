"""The open log: its queue, write cycle, change of segments, checkpoints, rollback and cleaning."""
