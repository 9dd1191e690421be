"""Floor 9: load client and reports, usable against any OpenAI-compatible server."""
