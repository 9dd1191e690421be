"""Short ways to make `SampleRow`s, masks and logits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from trivium.config.sampling import SamplingParams
from trivium.sampling.batch import SampleRow

ROW_FIELDS = {"choice", "position", "tokens", "prompt_len", "held_back_ids", "bad_word_ids", "target", "num_logprobs"}


def row(**fields: Any) -> SampleRow:
    """Make a row; whatever is not a field of `SampleRow` is one of its `SamplingParams`."""
    params = {name: fields.pop(name) for name in list(fields) if name not in ROW_FIELDS}
    tokens = fields.setdefault("tokens", [1, 2, 3])
    fields.setdefault("position", len(tokens))
    return SampleRow(
        params=SamplingParams(**{"seed": 0, "logprobs_mode": "raw", **params}),
        **{"choice": 0, "prompt_len": min(2, len(tokens)), **fields},
    )


def mask_of(allowed: Iterable[int], vocab_size: int) -> np.ndarray:
    """Make a [1, ceil(V / 32)] grammar mask that allows these tokens."""
    words = np.zeros((1, (vocab_size + 31) // 32), np.uint32)
    for token in allowed:
        words[0, token // 32] |= np.uint32(1 << (token % 32))
    return words


def random_logits(num_rows: int, vocab_size: int, seed: int, spread: float = 3.0) -> np.ndarray:
    """Make [R, V] float32 logits."""
    return np.random.default_rng(seed).normal(0, spread, (num_rows, vocab_size)).astype(np.float32)
