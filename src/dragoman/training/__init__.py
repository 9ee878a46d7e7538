"""Learning: the state, one update, the story of a run, checkpoints and validation."""
