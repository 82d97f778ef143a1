"""The open log: queue, write cycle, rolls, checkpoints, rollback, cleaning."""
