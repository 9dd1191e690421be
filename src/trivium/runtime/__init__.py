"""Floor 5: executors and the memory they run in. Never imports the compiler or the model definitions."""
