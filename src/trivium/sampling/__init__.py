"""Floor 3: from logits to tokens: processors in a fixed order, Philox draws, logprobs."""
