"""Floor 2: pages, the radix tree over them, and the accounting that re-derives who owns what. Sees page ids only."""
