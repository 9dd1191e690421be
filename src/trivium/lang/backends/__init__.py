"""What runs the language's requests: a model in this process, or a script."""

from __future__ import annotations

from trivium.lang.backends.backend import Backend

__all__ = ["Backend"]
