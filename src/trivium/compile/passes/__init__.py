"""The passes, one per file: each a function from graph to graph. `compile.pipeline` says in which order they run."""
