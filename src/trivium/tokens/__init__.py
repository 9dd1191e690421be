"""Floor 2: tokenizers, incremental detokenization, chat templates."""
