"""Floor 6: the loop, its process, its client. Knows protocols, not concrete executors."""
