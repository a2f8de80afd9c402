"""Chat templates of checkpoints, rendered within bounds."""
