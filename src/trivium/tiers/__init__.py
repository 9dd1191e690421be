"""Floor 3: where whole pages go that the KV pool evicts, and whence they come back: host memory, disk."""
