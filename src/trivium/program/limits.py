"""How large a program may be. What it may do, whoever runs it decides."""

from __future__ import annotations

MAX_BYTES = 1 << 20
"""Most bytes of a program as JSON or as text."""
MAX_NODES = 10_000
MAX_DEPTH = 32
"""Deepest nesting of bodies."""
MAX_VALUE_DEPTH = 64
"""Deepest nesting of a value: that of a schema, and a little."""
MAX_BRANCHES = 1_024
"""Most branches of a fork."""
MAX_STEPS = 1_000_000
"""Most steps that a `while` may be allowed."""
MAX_NAME_LEN = 128
MAX_PARAMS = 256
MAX_PATH_LEN = 16
"""Most keys and indices that lead to a part of a value."""
