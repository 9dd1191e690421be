"""The composition root: the one package that names concrete classes of all floors.

::

    options ─► resolve_model ─► open_checkpoint ─► parse_config ─┬─► Frontend    (server: tokenizer, template, limits)
                                                                 └─► EngineLoop  (engine: executor, KV, scheduler)

`model` finds and opens, `engine` builds the loop, `process` runs it in a process of its own.
"""

from __future__ import annotations

from trivium.assembly.engine import build_engine
from trivium.assembly.model import Frontend, OpenModel, Report, find_model, load_frontend, load_tokenizer, open_model
from trivium.assembly.process import engine_client

__all__ = [
    "Frontend",
    "OpenModel",
    "Report",
    "build_engine",
    "engine_client",
    "find_model",
    "load_frontend",
    "load_tokenizer",
    "open_model",
]
