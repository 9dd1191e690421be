"""Floor 0: errors, ids, clock, log, metrics. Imports nothing of Trivium."""
