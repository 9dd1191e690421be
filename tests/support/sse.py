"""Reading server-sent events in tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def events(body: str) -> list[Any]:
    """Return the payload of every `data:` line, parsed, `[DONE]` as the text it is; comments are left out."""
    lines = [line.removeprefix("data: ") for line in body.split("\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line, parse_constant=_refuse) for line in lines]


def chunks(body: str) -> list[dict[str, Any]]:
    """Return the chunks of a stream that ended well, without `[DONE]`."""
    seen = events(body)
    assert seen[-1] == "[DONE]"
    assert "[DONE]" not in seen[:-1]
    return seen[:-1]


def texts_by_index(seen: Sequence[dict[str, Any]]) -> dict[int, str]:
    """Join the texts of a stream by choice, of either endpoint."""
    joined: dict[int, str] = {}
    for chunk in seen:
        for choice in chunk["choices"]:
            piece = choice["text"] if "text" in choice else choice["delta"].get("content", "")
            joined[choice["index"]] = joined.get(choice["index"], "") + piece
    return joined


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no strict JSON")
