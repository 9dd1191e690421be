"""Floor 4: from a graph to a plan: passes, memory plan, emission."""
