"""Floor 2: native kernels behind plain array functions, with a NumPy stand-in for each."""
