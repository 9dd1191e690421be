"""Floor 9: HTTP: OpenAI's API, operations, metrics. Formats; decides nothing about tokens.

The life of a request here: `gate` (id, key) → `generation_route` → `body` (strict JSON) → `completions` or `chat` with
`tables` (fields) and `conversation` (messages) → `job` → `generate` (the engine) → the endpoint's form → `events`.
"""

from __future__ import annotations

from trivium.server.app import build_app
from trivium.server.launch import run
from trivium.server.served import ServedModel

__all__ = ["ServedModel", "build_app", "run"]
