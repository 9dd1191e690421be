"""Case D03 at length: twenty thousand short prompts, none of which may find more cached than was ever sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.tiny_engine import run_alone, tiny_loop
from trivium.config.sampling import SamplingParams

COUNT = 20_000
Seen = dict[int, Any]
"""What was ever sent, as nested tables: token id to what followed it."""


def longest_known(seen: Seen, tokens: list[int]) -> int:
    """Length of the longest prefix that was sent before."""
    for depth, token in enumerate(tokens):
        if token not in seen:
            return depth
        seen = seen[token]
    return len(tokens)


def remember(seen: Seen, tokens: list[int]) -> None:
    for token in tokens:
        seen = seen.setdefault(token, {})


@pytest.mark.slow
def test_d03_twenty_thousand_prompts_never_find_more_than_was_sent() -> None:
    loop, rng, seen = tiny_loop(kv_cache_memory="256KiB"), np.random.default_rng(11), Seen()
    params, num_hits = SamplingParams(temperature=0.0, max_tokens=1), 0
    for _ in range(COUNT):
        prompt = rng.integers(3, rng.choice((5, 8, 250)), rng.integers(1, 24)).tolist()
        output = run_alone(loop, prompt, params)
        assert output.num_cached_tokens <= min(longest_known(seen, prompt), len(prompt) - 1)
        num_hits += output.num_cached_tokens > 0
        remember(seen, [*prompt, *output.outputs[0].token_ids])
    assert num_hits > COUNT // 10
    assert loop.check() == []
    loop.close()
