"""Floor 9: HTTP: OpenAI's API, operations, metrics. Formats; decides nothing about tokens."""
