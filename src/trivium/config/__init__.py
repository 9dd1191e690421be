"""Floor 1: frozen records, one per concern; no behaviour beyond checking themselves."""
