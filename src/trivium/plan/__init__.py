"""Floor 3: the compiled product: records of a native program, and their file."""
