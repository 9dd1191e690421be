"""Floor 2: graphs: ops with signatures and meaning, builder, printer, parser, verifier, interpreter."""
