"""The sampler against its contract: stage by stage, tie by tie, and every parameter that it honours."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from support.sample_rows import mask_of, random_logits, row
from support.scalar_sampler import draw_token
from trivium.base.errors import InternalError
from trivium.sampling.pipeline import EDITS, FILTERS, sample

V = 64


def tokens_of(logits: np.ndarray, **params: Any) -> list[int]:
    """Draw at 200 positions from one distribution."""
    rows = [row(tokens=[5, 6, 7], position=3, choice=choice, **params) for choice in range(200)]
    return sample(np.tile(logits, (200, 1)), rows).token_ids.tolist()


def greedy(logits: list[float], **params: Any) -> int:
    return int(sample(np.array([logits], np.float32), [row(temperature=0, **params)]).token_ids[0])


def test_stages_stand_in_the_order_of_the_contract() -> None:
    names = [stage.name for stage in (*EDITS, *FILTERS)]
    assert names == ["logit bias", "bad words", "min tokens", "penalties", "top-k", "top-p", "min-p", "typical"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"temperature": 0.5}, {"temperature": 2.0}),
        ({"top_k": 2}, {"top_k": 0}),
        ({"top_p": 0.3}, {"top_p": 1.0}),
        ({"min_p": 0.4}, {"min_p": 0.0}),
        ({"typical_p": 0.3}, {"typical_p": 1.0}),
        ({"repetition_penalty": 3.0}, {"repetition_penalty": 1.0}),
        ({"presence_penalty": 2.0}, {"presence_penalty": -2.0}),
        ({"frequency_penalty": 2.0}, {"frequency_penalty": -2.0}),
        ({"logit_bias": {9: 4.0}}, {"logit_bias": {}}),
        ({"bad_word_ids": [[8]]}, {"bad_word_ids": []}),
        ({"held_back_ids": [8]}, {"held_back_ids": []}),
        ({"seed": 1}, {"seed": 2}),
    ],
    ids=lambda value: next(iter(value)),
)
def test_two_values_of_a_parameter_give_different_tokens(one: dict[str, Any], other: dict[str, Any]) -> None:
    logits = random_logits(1, V, seed=1, spread=1.0)[0]
    logits[[6, 7, 8]] += 3.0  # tokens that occurred, or that are forbidden, are likely
    assert tokens_of(logits, **one) == tokens_of(logits, **one)
    assert tokens_of(logits, **one) != tokens_of(logits, **other)


@pytest.mark.parametrize("vocab_size", [1, 2, 33, 700])
@pytest.mark.parametrize("seed", range(6))
def test_every_mixture_of_parameters_draws_what_the_scalar_sampler_draws(vocab_size: int, seed: int) -> None:
    generator = np.random.default_rng(100 * vocab_size + seed)
    logits = np.round(random_logits(40, vocab_size, seed), 1)  # rounded, so that ties happen
    rows = [random_row(generator, vocab_size) for _ in range(40)]
    allowed = {int(t) for t in generator.integers(0, vocab_size, vocab_size)} | {0}
    mask_row = generator.integers(-1, 1, 40).astype(np.int32)
    sampled = sample(logits, rows, mask_of(allowed, vocab_size), mask_row)
    assert not sampled.errors
    for index, one in enumerate(rows):
        wanted = draw_token(logits[index].tolist(), one, allowed if mask_row[index] == 0 else None)
        assert sampled.token_ids[index] == wanted, one


def random_row(generator: np.random.Generator, vocab_size: int) -> Any:
    def some(*values: Any) -> Any:
        return values[int(generator.integers(len(values)))]

    tokens = [int(t) for t in generator.integers(0, vocab_size, 12)]
    return row(
        tokens=tokens,
        position=some(5, 9, 12),
        prompt_len=5,
        choice=some(0, 1, 127),
        seed=int(generator.integers(0, 2**63)) * 2 + some(0, 1),
        temperature=some(0.0, 1e-4, 0.3, 1.0, 1.0, 5.0),
        top_k=some(0, -1, 1, 5, 10000),
        top_p=some(1.0, 0.1, 0.9, 0.999999),
        min_p=some(0.0, 0.0, 0.05, 1.0),
        typical_p=some(1.0, 1.0, 0.2, 0.95),
        repetition_penalty=some(1.0, 1.3, 0.7),
        presence_penalty=some(0.0, 1.5, -0.7),
        frequency_penalty=some(0.0, 0.3, -1.1),
        logit_bias=some({}, {0: -3.0, vocab_size - 1: 2.5}),
        bad_word_ids=()
        if vocab_size == 1
        else some((), [[vocab_size - 1], [tokens[4], 1], [tokens[8], vocab_size - 1]]),
    )


@pytest.mark.parametrize("params", [{}, {"top_p": 0.9}, {"min_p": 0.01}, {"top_p": 0.5, "typical_p": 0.9}])
@pytest.mark.parametrize("spread", [0.0, 0.01, 2.0])
def test_a_large_vocabulary_draws_what_the_scalar_sampler_draws(params: dict[str, float], spread: float) -> None:
    """Above 4096 candidates answers come from estimates where those suffice."""
    logits = random_logits(3, 9000, seed=8, spread=spread)
    rows = [row(position=3, choice=choice, **params) for choice in range(3)]
    wanted = [draw_token(logits[index].tolist(), one) for index, one in enumerate(rows)]
    assert sample(logits, rows).token_ids.tolist() == wanted


def test_equal_logits_give_the_lowest_id() -> None:
    assert greedy([1.0, 3.0, 3.0, 0.0]) == 1
    assert set(tokens_of(np.zeros(V, np.float32), top_k=3)) == {0, 1, 2}
    assert set(tokens_of(np.zeros(V, np.float32), top_p=0.0625)) == {0, 1, 2, 3}


def test_top_p_stops_at_the_token_that_reaches_it_exactly() -> None:
    logits = np.zeros(4, np.float32)
    assert set(tokens_of(logits, top_p=0.5)) == {0, 1}
    assert set(tokens_of(logits, top_p=0.51)) == {0, 1, 2}
    assert set(tokens_of(logits, top_p=1e-300)) == {0}


@pytest.mark.parametrize("temperature", [1e-4, 1.1e-5, 1e-6, 1e-9])
def test_tiny_temperatures_take_the_most_likely_token(temperature: float) -> None:
    logits = random_logits(1, V, seed=3)[0] * 1000
    assert set(tokens_of(logits, temperature=temperature)) == {int(logits.argmax())}


def test_repetition_counts_prompt_and_output_and_the_other_penalties_output_only() -> None:
    logits = [0.0, 2.0, 1.9, 0.0]
    prompt = {"tokens": [1, 1, 1], "prompt_len": 3}
    assert greedy(logits, presence_penalty=2.0, frequency_penalty=2.0, **prompt) == 1
    assert greedy(logits, repetition_penalty=1.5, **prompt) == 2
    output = {"tokens": [0, 1, 1], "prompt_len": 1}
    assert greedy(logits, presence_penalty=0.2, **output) == 2
    assert greedy(logits, frequency_penalty=0.06, **output) == 2
    assert greedy(logits, frequency_penalty=0.04, **output) == 1


def test_tokens_behind_the_position_are_not_seen() -> None:
    logits = [0.0, 2.0, 1.9, 0.0]
    assert greedy(logits, tokens=[0, 3, 1, 1], position=2, prompt_len=1, presence_penalty=2.0) == 1


def test_a_bad_word_is_banned_only_after_the_rest_of_its_spelling_was_generated() -> None:
    logits = [0.0, 2.0, 1.9, 0.0]
    assert greedy(logits, tokens=[0, 3], prompt_len=1, bad_word_ids=[[3, 1]]) == 2
    assert greedy(logits, tokens=[0, 3], prompt_len=2, bad_word_ids=[[3, 1]]) == 1
    assert greedy(logits, tokens=[0, 2], prompt_len=1, bad_word_ids=[[3, 1]]) == 1
    assert greedy(logits, bad_word_ids=[[1]]) == 2


def test_the_mask_holds_against_any_bias() -> None:
    logits = random_logits(1, 40, seed=4)
    rows = [row(temperature=0, logit_bias={39: 100.0})]
    sampled = sample(logits, rows, mask_of([3, 38], 40), np.zeros(1, np.int32))
    assert sampled.token_ids[0] in {3, 38}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_p": 0.5}, {"target": 2}, {"logit_bias": {1: 1.0}}])
def test_a_row_that_is_not_finite_fails_alone(bad: float, params: dict[str, Any]) -> None:
    logits = random_logits(3, V, seed=5)
    logits[1, 17] = bad
    sampled = sample(logits, [row(**params) for _ in range(3)])
    assert list(sampled.errors) == [1]
    assert str(bad) in sampled.errors[1]
    alone = sample(logits[2:], [row(**params)])
    assert sampled.token_ids[2] == alone.token_ids[0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_every_token_forbidden_fails_alone(temperature: float) -> None:
    logits = random_logits(2, V, seed=6)
    rows = [row(temperature=temperature, bad_word_ids=[[4]]), row(temperature=temperature)]
    sampled = sample(logits, rows, mask_of([4], V), np.array([0, -1], np.int32))
    assert list(sampled.errors) == [0]
    assert "forbid" in sampled.errors[0]
    assert sampled.token_ids[1] >= 0


def test_impossible_tokens_of_the_model_are_never_drawn() -> None:
    logits = np.full(V, -np.inf, np.float32)
    logits[[3, 60]] = 0.0
    assert set(tokens_of(logits)) == {3, 60}


def test_logits_are_left_as_they_were() -> None:
    logits = random_logits(2, V, seed=7)
    before = logits.copy()
    sample(logits, [row(logit_bias={1: 5.0}, repetition_penalty=2.0), row(top_p=0.5, num_logprobs=3)])
    assert np.array_equal(logits, before)


def test_no_rows_give_no_tokens() -> None:
    assert len(sample(np.zeros((0, V), np.float32), []).token_ids) == 0


def test_rows_that_do_not_fit_the_logits_are_our_own_fault() -> None:
    with pytest.raises(InternalError, match="2 rows"):
        sample(random_logits(1, V, seed=0), [row(), row()])
    with pytest.raises(InternalError, match="seed"):
        sample(random_logits(1, V, seed=0), [row(seed=None)])


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_frequencies_of_draws_follow_the_softmax(temperature: float) -> None:
    logits = random_logits(1, 12, seed=9, spread=1.0)[0]
    draws = 20000
    rows = [row(position=3 + i, tokens=[0] * 3, temperature=temperature, seed=77) for i in range(draws)]
    counts = np.bincount(sample(np.tile(logits, (draws, 1)), rows).token_ids, minlength=12)
    weights = np.exp(logits.astype(float) / temperature)
    wanted = draws * weights / weights.sum()
    assert ((counts - wanted) ** 2 / wanted).sum() < 31.3  # chi-square, 11 degrees of freedom, 0.1 %
