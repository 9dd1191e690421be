"""Laws of the sampler over random batches: a row's answer is its own, and equals the contract's."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from support.sample_rows import mask_of, row
from support.scalar_sampler import draw_token
from trivium.sampling.batch import SampleRow
from trivium.sampling.pipeline import sample

V = 50
TOKENS = st.integers(0, V - 1)


@st.composite
def sample_rows(draw: st.DrawFn) -> SampleRow:
    params: dict[str, Any] = draw(
        st.fixed_dictionaries({
            "temperature": st.sampled_from([0.0, 1e-4, 0.5, 1.0, 3.0]),
            "top_k": st.sampled_from([0, 1, 7]),
            "top_p": st.floats(0.01, 1.0),
            "min_p": st.sampled_from([0.0, 0.1, 1.0]),
            "typical_p": st.sampled_from([1.0, 0.5]),
            "repetition_penalty": st.sampled_from([1.0, 1.7]),
            "presence_penalty": st.sampled_from([0.0, 0.9]),
            "frequency_penalty": st.sampled_from([0.0, -0.4]),
            "logit_bias": st.dictionaries(TOKENS, st.floats(-100, 100), max_size=3),
            "bad_word_ids": st.lists(st.lists(TOKENS, min_size=1, max_size=2), max_size=2),
            "held_back_ids": st.lists(TOKENS, max_size=2),
            "seed": st.integers(0, 2**64 - 1),
            "choice": st.integers(0, 127),
            "tokens": st.lists(TOKENS, min_size=3, max_size=9),
            "num_logprobs": st.sampled_from([None, 0, 4]),
            "logprobs_mode": st.sampled_from(["raw", "processed"]),
            "best_of": st.sampled_from([None, 2]),
            "target": st.one_of(st.none(), TOKENS),
        })
    )
    return row(**params)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[SampleRow], np.ndarray, list[int]]:
    rows = draw(st.lists(sample_rows(), min_size=1, max_size=6))
    seed = draw(st.integers(0, 2**32))
    logits = np.random.default_rng(seed).normal(0, 3, (len(rows), V)).astype(np.float32).round(1)
    return rows, logits, draw(st.lists(st.sampled_from([-1, 0]), min_size=len(rows), max_size=len(rows)))


ALLOWED = set(range(0, V, 3)) | {V - 1}


@settings(max_examples=150, deadline=None)
@given(batches(), st.randoms(use_true_random=False))
def test_a_row_answers_the_same_alone_and_anywhere_in_any_batch(batch: Any, random: Any) -> None:
    rows, logits, mask_row = batch
    mask = mask_of(ALLOWED, V)
    together = sample(logits, rows, mask, np.array(mask_row, np.int32))
    order = list(range(len(rows)))
    random.shuffle(order)
    shuffled = sample(logits[order], [rows[i] for i in order], mask, np.array(mask_row, np.int32)[order])
    for place, index in enumerate(order):
        alone = sample(logits[[index]], [rows[index]], mask, np.array([mask_row[index]], np.int32))
        for other, at in ((together, index), (shuffled, place)):
            assert other.token_ids[at] == alone.token_ids[0]
            assert other.logprobs[at] == alone.logprobs[0]
            assert other.errors.get(at) == alone.errors.get(0)
        if rows[index].params.best_of is not None:
            assert alone.chosen_logprobs is not None
            assert together.chosen_logprobs is not None
            assert together.chosen_logprobs[index] == alone.chosen_logprobs[0]


@settings(max_examples=150, deadline=None)
@given(batches())
def test_drawn_tokens_are_those_of_the_scalar_sampler(batch: Any) -> None:
    rows, logits, mask_row = batch
    sampled = sample(logits, rows, mask_of(ALLOWED, V), np.array(mask_row, np.int32))
    for index, one in enumerate(rows):
        if one.target is None and index not in sampled.errors:
            allowed = ALLOWED if mask_row[index] == 0 else None
            assert sampled.token_ids[index] == draw_token(logits[index].tolist(), one, allowed)
