"""The native sampler answers what the NumPy one answers, to the last bit, whatever is asked, at every level."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.sample_rows import row
from trivium.base.errors import InternalError
from trivium.kernels import native as kernels
from trivium.sampling import native, pipeline
from trivium.sampling.batch import Sampled, SampleRow

MODULE = kernels.load()

pytestmark = pytest.mark.skipif(MODULE is None, reason="needs the native module")


def runs_here(isa: str) -> bool:
    try:
        native.sample(np.zeros((1, 1), np.float32), [row(temperature=0.0)], isa=isa)
    except InternalError:  # a level that this processor lacks is refused
        return False
    return True


LEVELS = [] if MODULE is None else [isa for isa, _ in MODULE.sample_kernels() if runs_here(isa)]

SIZES = [1, 2, 31, 33, 127, 129, 300, 1025, 4500, 9001]


@st.composite
def sample_rows(draw: st.DrawFn, vocab_size: int) -> SampleRow:
    tokens = st.integers(0, vocab_size - 1)
    known = draw(st.lists(tokens, min_size=3, max_size=12))
    position = len(known) - draw(st.sampled_from([0, 0, 1]))
    params: dict[str, Any] = draw(
        st.fixed_dictionaries({
            "temperature": st.sampled_from([0.0, 1e-6, 1.1e-5, 1e-4, 0.5, 1.0, 1.0, 3.0, 100.0]),
            "top_k": st.sampled_from([0, 0, -1, 1, 7, 60, 1000, 100_000]),
            "top_p": st.one_of(st.just(1.0), st.floats(1e-12, 1.0), st.sampled_from([0.25, 0.5, 1 - 2**-53, 1e-300])),
            "min_p": st.one_of(st.just(0.0), st.floats(0.0, 1.0), st.sampled_from([1.0, 1e-300, 5e-324])),
            "typical_p": st.one_of(st.just(1.0), st.just(1.0), st.floats(1e-6, 1.0)),
            "repetition_penalty": st.sampled_from([1.0, 1.0, 1.7, 0.6, 100.0]),
            "presence_penalty": st.sampled_from([0.0, 0.0, 0.9, -2.0]),
            "frequency_penalty": st.sampled_from([0.0, 0.0, -0.4, 2.0]),
            "logit_bias": st.dictionaries(tokens, st.floats(-100, 100), max_size=3),
            "bad_word_ids": st.lists(
                st.lists(st.one_of(tokens, st.sampled_from(known)), min_size=1, max_size=3), max_size=3
            ),
            "held_back_ids": st.lists(tokens, max_size=2),
            "seed": st.integers(0, 2**64 - 1),
            "choice": st.integers(0, 127),
            "num_logprobs": st.sampled_from([None, None, 0, 1, 4, 20]),
            "logprobs_mode": st.sampled_from(["raw", "processed"]),
            "best_of": st.sampled_from([None, None, 2]),
            "target": st.one_of(st.none(), st.none(), tokens),
        })
    )
    return row(tokens=known, position=position, prompt_len=draw(st.integers(1, position + 3)), **params)


@st.composite
def logits_of(draw: st.DrawFn, vocab_size: int) -> np.ndarray:
    """One row: of any spread, with or without ties, impossible tokens, and faults."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = generator.normal(
        draw(st.sampled_from([0.0, -50.0])), draw(st.sampled_from([0.0, 0.01, 1, 3, 40])), vocab_size
    )
    decimals = draw(st.sampled_from([None, 0, 1]))
    values = values if decimals is None else values.round(decimals)
    impossible = generator.random(vocab_size) < draw(st.sampled_from([0.0, 0.0, 0.3, 0.999]))
    logits = np.where(impossible, -np.inf, values).astype(np.float32)
    fault = draw(st.sampled_from([None] * 12 + [np.nan, np.inf, -np.inf, 3e38, -3e38, -0.0]))
    if fault is not None:
        logits[generator.integers(vocab_size)] = fault
    return logits


@st.composite
def batches(draw: st.DrawFn) -> tuple[np.ndarray, list[SampleRow], np.ndarray, np.ndarray]:
    vocab_size = draw(st.sampled_from(SIZES))
    rows = draw(st.lists(sample_rows(vocab_size), min_size=1, max_size=5))
    logits = np.stack([draw(logits_of(vocab_size)) for _ in rows])
    words = (vocab_size + 31) // 32
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    few = generator.integers(0, 2**32, (6, words), np.uint32)
    masks = np.stack([few[0], few[0] | few[1], np.bitwise_and.reduce(few, axis=0)])
    mask_row = draw(st.lists(st.sampled_from([-1, -1, 0, 1, 2]), min_size=len(rows), max_size=len(rows)))
    return logits, rows, masks, np.array(mask_row, np.int32)


def assert_same(answer: Sampled, wanted: Sampled) -> None:
    assert answer.token_ids.dtype == wanted.token_ids.dtype
    assert answer.token_ids.tolist() == wanted.token_ids.tolist()
    assert answer.errors == wanted.errors
    assert answer.logprobs == wanted.logprobs  # exact: floats of dataclasses
    assert (answer.chosen_logprobs is None) == (wanted.chosen_logprobs is None)
    if answer.chosen_logprobs is not None and wanted.chosen_logprobs is not None:
        assert answer.chosen_logprobs.tolist() == wanted.chosen_logprobs.tolist()


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # 3e38 - -3e38 on NumPy's side
@settings(max_examples=250, deadline=None)
@given(batch=batches())
def test_every_level_answers_what_numpy_answers(batch: Any) -> None:
    wanted = pipeline.sample(*batch)
    for isa in LEVELS:
        assert_same(native.sample(*batch, isa=isa), wanted)


@settings(max_examples=60, deadline=None)
@given(batch=batches(), gap=st.integers(0, 40), random=st.randoms(use_true_random=False))
def test_a_row_answers_the_same_anywhere_in_an_arena(batch: Any, gap: int, random: Any) -> None:
    logits, rows, masks, mask_row = batch
    together = native.sample(logits, rows, masks, mask_row)
    order = list(range(len(rows)))
    random.shuffle(order)
    arena = np.full((len(rows), logits.shape[1] + gap), np.nan, np.float32)
    arena[:, : logits.shape[1]] = logits[order]
    shuffled = native.sample(arena[:, : logits.shape[1]], [rows[i] for i in order], masks, mask_row[order])
    for place, index in enumerate(order):
        assert shuffled.token_ids[place] == together.token_ids[index]
        assert shuffled.logprobs[place] == together.logprobs[index]
        assert shuffled.errors.get(place) == together.errors.get(index)
