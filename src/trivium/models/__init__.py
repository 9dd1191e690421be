"""Floor 4: architectures: each a function from `ModelConfig` to a graph."""
