"""Floor 3: the automaton that is the only reader of output tokens: text, stops, end of answer."""
