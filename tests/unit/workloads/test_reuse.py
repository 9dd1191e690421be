"""The optimum and the caches of whole blocks, beside counts by brute force."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.prefix_reuse import Setup, prefilled_by_scheduler, shared_beginnings
from benchmarks.workloads.blocks import tokens_prefilled
from benchmarks.workloads.optimum import KnownBeginnings, distinct_tokens, least_prefilled

BLOCK = 4
PROMPTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=20).map(tuple), min_size=1, max_size=8)


@given(PROMPTS)
def test_the_optimum_is_every_beginning_once_and_one_per_repetition(prompts: list[tuple[int, ...]]) -> None:
    beginnings = {prompt[:end] for prompt in prompts for end in range(1, len(prompt) + 1)}
    assert distinct_tokens(prompts) == len(beginnings)
    assert least_prefilled(prompts) == len(beginnings) + len(prompts) - len(set(prompts))


def test_what_was_there_before_is_known_to_the_token() -> None:
    known = KnownBeginnings()
    assert [known.add(prompt) for prompt in ([1, 2, 3], [1, 2, 4, 5], [2, 3], [1, 2, 4, 5, 6], [1])] == [0, 2, 0, 4, 1]


@given(PROMPTS, st.integers(1, 50), st.integers(1, 8))
def test_with_look_ahead_every_whole_block_is_computed_once_and_every_rest_always(
    prompts: list[tuple[int, ...]], budget: int, seats: int
) -> None:
    prompts = [prompt if len(prompt) % BLOCK else prompt[1:] or (0,) for prompt in prompts]
    blocks = {prompt[:end] for prompt in prompts for end in range(BLOCK, len(prompt) + 1, BLOCK)}
    rests = sum(len(prompt) % BLOCK for prompt in prompts)
    found = tokens_prefilled(prompts, block_len=BLOCK, budget=budget, seats=seats, looks_ahead=True)
    assert found == BLOCK * len(blocks) + rests


@given(PROMPTS, st.integers(1, 50), st.integers(1, 8))
def test_without_look_ahead_nothing_is_gained_and_at_one_prompt_a_time_nothing_lost(
    prompts: list[tuple[int, ...]], budget: int, seats: int
) -> None:
    def prefilled(seats: int, *, looks_ahead: bool) -> int:
        return tokens_prefilled(prompts, block_len=BLOCK, budget=budget, seats=seats, looks_ahead=looks_ahead)

    most = sum(map(len, prompts))
    assert least_prefilled(prompts) <= prefilled(seats, looks_ahead=False) <= most
    assert prefilled(1, looks_ahead=False) == prefilled(1, looks_ahead=True)


def test_prompts_that_come_together_compute_their_common_blocks_anew_without_look_ahead() -> None:
    prompts = [(1,) * 9, (1,) * 8 + (2,), (1,) * 8 + (3,)]
    assert tokens_prefilled(prompts, block_len=4, budget=100, seats=8, looks_ahead=False) == 27
    assert tokens_prefilled(prompts, block_len=4, budget=100, seats=8, looks_ahead=True) == 11
    # A step of 9 tokens computes the first prompt alone, and the others find it.
    assert tokens_prefilled(prompts, block_len=4, budget=9, seats=8, looks_ahead=False) == 11


def test_one_after_the_other_the_scheduler_computes_the_optimum() -> None:
    prompts = [(5,) * 50 + (1, 2), (5,) * 50 + (2, 3), (5,) * 50 + (1, 2), (7,) * 20]
    found = prefilled_by_scheduler(prompts, Setup(budget=64, seats=1))
    assert found == least_prefilled(prompts) == 50 + 2 + 2 + 1 + 20


def test_an_order_that_the_scheduler_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="order is 'by colour'; this scheduler knows"):
        prefilled_by_scheduler([(1, 2, 3)], Setup(budget=64, seats=1, order="by colour"))


def test_shared_beginnings_are_as_long_as_asked_for() -> None:
    prompts = shared_beginnings(30, random.Random(0), prompts=5, own_len=10)  # noqa: S311
    assert {prompt[:30] for prompt in prompts} == {prompts[0][:30]}
    assert least_prefilled(prompts) == 30 + 5 * 10
