"""Every architecture and rope kind against transformers: committed tiny models, logits and greedy tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from support.golden import (
    MODELS,
    GoldenAnswer,
    generate_greedily,
    golden_answers,
    load_executor,
    prompt_logits,
)
from support.golden_cases import CASES
from support.tiny_steps import Story
from trivium.config.model import ModelConfig, RopeConfig
from trivium.runtime.reference import ReferenceExecutor

NAMES = [case.name for case in CASES]
TOLERANCE = 1e-4


@cache
def executor_of(name: str) -> ReferenceExecutor:
    return load_executor(MODELS / name, max_tokens=256)


@cache
def answers_of(name: str) -> list[GoldenAnswer]:
    return golden_answers(MODELS / name)


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name: str) -> None:
    for golden in answers_of(name):
        logits = prompt_logits(executor_of(name), golden.prompt, golden.reach)[golden.rows]
        np.testing.assert_allclose(logits, golden.logits, rtol=0, atol=TOLERANCE, err_msg=f"reach {golden.reach}")


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_are_those_of_transformers_from_a_chunked_prompt(name: str) -> None:
    for golden in answers_of(name):
        drawn = generate_greedily(executor_of(name), golden.prompt, golden.reach, len(golden.greedy), chunk_len=7)
        assert drawn == golden.greedy, f"reach {golden.reach}"


@pytest.mark.parametrize("name", NAMES)
def test_logits_have_the_same_bits_in_chunks_of_any_length(name: str) -> None:
    golden = answers_of(name)[1]
    executor = executor_of(name)
    whole = prompt_logits(executor, golden.prompt, golden.reach)
    for chunk_len in (1, 5, 16, 33):
        chunked = prompt_logits(executor, golden.prompt, golden.reach, chunk_len=chunk_len)
        np.testing.assert_array_equal(chunked, whole, err_msg=f"chunks of {chunk_len}")


@pytest.mark.parametrize("name", NAMES)
def test_requests_in_one_step_do_not_change_each_others_logits(name: str) -> None:
    """Short and long requests with different rope tables run packed, as prefill and then as one decode step."""
    answers, executor = answers_of(name), executor_of(name)
    story = Story(executor.kv_spec, [list(range(num_pages)) for num_pages in executor.num_pages])
    requests = [story.start([*golden.prompt, golden.greedy[0]], golden.reach) for golden in answers]
    executor.forward(story.step([(request, len(request.tokens) - 1) for request in requests]))
    packed = np.split(executor.logits.copy(), np.cumsum([len(golden.prompt) for golden in answers])[:-1])
    executor.forward(story.step([(request, 1) for request in requests]))
    decoded = executor.logits.copy()
    for golden, logits, decode_row in zip(answers, packed, decoded, strict=True):
        alone = prompt_logits(executor, [*golden.prompt, golden.greedy[0]], golden.reach)
        np.testing.assert_array_equal(logits, alone[:-1])
        np.testing.assert_array_equal(decode_row, alone[-1])


@pytest.mark.parametrize("name", ["llama-dynamic", "phi3-longrope", "phi3-longrope-partial"])
def test_the_reach_of_a_request_changes_its_rope_table(name: str) -> None:
    short, *_, stretched = answers_of(name)
    assert short.prompt == stretched.prompt
    assert np.abs(short.logits - stretched.logits).max() > 100 * TOLERANCE


def without_windows(config: ModelConfig) -> ModelConfig:
    return replace(config, layers=tuple(replace(layer, window=None) for layer in config.layers))


def wider_by_one(config: ModelConfig) -> ModelConfig:
    layers = (replace(layer, window=layer.window and layer.window + 1) for layer in config.layers)
    return replace(config, layers=tuple(layers))


def with_plain_rope(config: ModelConfig) -> ModelConfig:
    return replace(config, layers=tuple(replace(layer, rope=plain(layer.rope)) for layer in config.layers))


def plain(rope: RopeConfig | None) -> RopeConfig | None:
    return rope and RopeConfig(theta=rope.theta, rotary_dim=rope.rotary_dim, original_max_positions=128)


def without_attention_cap(config: ModelConfig) -> ModelConfig:
    return replace(config, attention_softcap=None)


def with_other_epsilon(config: ModelConfig) -> ModelConfig:
    return replace(config, norm_eps=1e-5)


def with_head_width_scale(config: ModelConfig) -> ModelConfig:
    return replace(config, attention_scale=config.head_width**-0.5)


def with_silu(config: ModelConfig) -> ModelConfig:
    return replace(config, activation="silu")


SCALED_ROPES = [case.name for case in CASES if "rope" in str(case.settings) and not case.name.startswith("gemma")]
WINDOWED = [case.name for case in CASES if "sliding_window" in str(case.settings) and case.name != "mistral-full"]
MISTAKES = [
    *[(without_windows, name) for name in WINDOWED],
    *[(wider_by_one, name) for name in WINDOWED],
    *[(with_plain_rope, name) for name in [*SCALED_ROPES, "gemma3-linear"]],
    (without_attention_cap, "gemma2-softcap"),
    (with_other_epsilon, "llama-wide-heads"),
    (with_head_width_scale, "gemma2-softcap"),
    (with_silu, "gemma3-pattern"),
]


@pytest.mark.parametrize(("mistake", "name"), MISTAKES)
def test_a_mistake_would_be_noticed(mistake: Callable[[ModelConfig], ModelConfig], name: str) -> None:
    golden = answers_of(name)[1]
    mistaken = load_executor(MODELS / name, change=mistake)
    logits = prompt_logits(mistaken, golden.prompt, golden.reach)[golden.rows]
    assert np.abs(logits - golden.logits).max() > 10 * TOLERANCE
