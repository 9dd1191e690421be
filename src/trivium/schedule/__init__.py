"""Floor 4: requests, queue, policies, and the building of steps. Decides; computes nothing."""
