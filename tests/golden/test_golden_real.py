"""Real weights against transformers, which dequantized the same GGUF file: greedy tokens, and a text's perplexity.

smollm2 is the default model, so every machine that runs the tests can fetch it; what takes minutes is marked `soak`.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

from support.golden import GOLDEN, forward, generate_greedily, load_executor, read_json
from trivium.base.intmath import align_up
from trivium.config.options import ModelOptions
from trivium.runtime.reference import ReferenceExecutor
from trivium.tokens.load import load_tokenizer_from_gguf
from trivium.weights.checkpoint import open_checkpoint
from trivium.weights.resolve import resolve_model

ROWS_AT_ONCE = 128
PERPLEXITY_TOLERANCE = 1e-3
SMALL = "smollm2"
LARGE = pytest.param("gemma3-270m", marks=pytest.mark.soak)


@cache
def golden_of(name: str) -> dict[str, Any]:
    return read_json(GOLDEN / "real" / f"{name}.json")


@cache
def executor_of(name: str) -> ReferenceExecutor:
    path = resolve_model(ModelOptions(model=name)).path
    return load_executor(path, max_tokens=align_up(len(golden_of(name)["text_ids"]), ROWS_AT_ONCE))


def mean_loss(executor: ReferenceExecutor, tokens: list[int]) -> float:
    """Mean of minus log probability over all tokens but the first."""
    losses: list[float] = []
    for start in range(0, len(tokens) - 1, ROWS_AT_ONCE):
        chunk, targets = tokens[start : start + ROWS_AT_ONCE], tokens[start + 1 : start + ROWS_AT_ONCE + 1]
        chunk = chunk[: len(targets)]
        logits = forward(executor, chunk, start, len(tokens), range(len(chunk))).astype(np.float64)
        largest = logits.max(axis=1)
        log_sums = np.log(np.exp(logits - largest[:, None]).sum(axis=1)) + largest
        losses += (log_sums - logits[np.arange(len(chunk)), targets]).tolist()
    return math.fsum(losses) / len(losses)


@pytest.mark.parametrize(
    ("name", "prompt_idx"),
    [
        (SMALL, 0),
        (SMALL, 1),
        pytest.param("gemma3-270m", 0, marks=pytest.mark.soak),
        pytest.param("gemma3-270m", 1, marks=pytest.mark.soak),
    ],
)
def test_64_greedy_tokens_are_those_of_transformers(name: str, prompt_idx: int) -> None:
    golden = golden_of(name)["answers"][prompt_idx]
    prompt, expected = golden["prompt_ids"], golden["greedy"]
    assert len(expected) == 64
    drawn = generate_greedily(executor_of(name), prompt, len(prompt) + len(expected), len(expected))
    assert drawn == expected


@pytest.mark.parametrize("name", [SMALL, LARGE])
def test_token_ids_are_those_of_transformers(name: str) -> None:
    golden = golden_of(name)
    checkpoint = open_checkpoint(resolve_model(ModelOptions(model=name)).path)
    tokenizer = load_tokenizer_from_gguf(checkpoint.metadata)
    checkpoint.close()
    text = (GOLDEN / "texts" / f"{golden['text']}.txt").read_text()
    expected = golden["text_ids"]
    assert tokenizer.encode(text, add_special_tokens=True)[: len(expected)] == expected
    for answer in golden["answers"]:
        assert tokenizer.encode(answer["prompt"], add_special_tokens=True) == answer["prompt_ids"]


@pytest.mark.parametrize("name", [SMALL, LARGE])
def test_perplexity_of_a_part_of_the_text_is_that_of_transformers(name: str) -> None:
    golden = golden_of(name)
    found = mean_loss(executor_of(name), golden["text_ids"][: golden["part_len"]])
    assert math.exp(found) == pytest.approx(math.exp(golden["part_loss"]), abs=PERPLEXITY_TOLERANCE)


@pytest.mark.soak
@pytest.mark.parametrize("name", [SMALL, LARGE])
def test_perplexity_of_the_whole_text_is_that_of_transformers(name: str) -> None:
    golden = golden_of(name)
    found = mean_loss(executor_of(name), golden["text_ids"])
    assert math.exp(found) == pytest.approx(math.exp(golden["whole_loss"]), abs=PERPLEXITY_TOLERANCE)
