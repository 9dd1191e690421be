"""Floor 2: checkpoints: finding, fetching, mapping, naming, dequantizing and checking weights."""
