"""How each engine is installed, driven in process, and served."""
