"""Prompts of an exact number of tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path


def draw(words: Path, seed: int, count: int, length: int) -> list[list[int]]:
    """Draw prompts from a JSON list of token ids; a seed gives the same prompts everywhere.

    Args:
        words: The file.
        seed: A prompt of another seed shares no long prefix with these, so that no cache helps.
        count: Number of prompts.
        length: Tokens of each.

    Raises:
        ValueError: The file holds no ids.
    """
    ids = json.loads(words.read_text())
    if not ids or not all(isinstance(id_, int) for id_ in ids):
        raise ValueError(f"{words} holds no token ids")
    rng = random.Random(seed)  # noqa: S311  (prompts, not secrets)
    return [rng.choices(ids, k=length) for _ in range(count)]
