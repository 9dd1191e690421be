"""Floor 4: programs as data: nodes and values, checks, JSON, text, pictures, and what is known before they run."""
