"""Estimates: they decide most draws and cuts, and leave every close call to the exact sums."""

from __future__ import annotations

import numpy as np
import pytest

from support.sample_rows import random_logits
from trivium.config.sampling import SamplingParams
from trivium.sampling import draw as drawing
from trivium.sampling.candidates import Candidates
from trivium.sampling.draw import draw
from trivium.sampling.filters import keep_min_p, keep_top_p
from trivium.sampling.softmax import estimate, softmax

V = 20_000


def candidates_of(logits: np.ndarray, *, is_exact: bool) -> Candidates:
    candidates = Candidates(None, logits, float(logits.max()))
    if is_exact:
        candidates.know(softmax(logits, candidates.greatest))
    return candidates


@pytest.mark.parametrize("spread", [0.0, 0.1, 3.0])
def test_estimated_draws_are_the_exact_ones_even_on_the_boundaries(spread: float) -> None:
    logits = random_logits(1, V, seed=1, spread=spread)[0]
    exact, guess = candidates_of(logits, is_exact=True), candidates_of(logits, is_exact=False)
    running = np.cumsum(exact.softmax.weights)
    boundaries = (running / running[-1])[:: V // 40].tolist()
    numbers = [*np.random.default_rng(2).random(200), 0.0, 1 - 2**-53]
    for boundary in boundaries:
        numbers.extend((boundary, float(np.nextafter(boundary, 0)), float(np.nextafter(boundary, 1))))
    for number in numbers:
        if number < 1.0:
            assert draw(guess, number) == draw(exact, number)


def test_an_estimate_decides_between_boundaries_and_declines_on_them() -> None:
    guess = estimate(np.zeros(V, np.float32), 0.0)
    assert drawing._estimated_place(guess, 1000.5 / V) == 1000
    assert drawing._estimated_place(guess, 1000 / V) is None
    assert drawing._estimated_place(guess, 0.0) == 0
    assert drawing._estimated_place(guess, 1 - 2**-53) is None


def kept_at(logits: np.ndarray, top_p: float, *, is_exact: bool) -> list[int]:
    candidates = candidates_of(logits, is_exact=is_exact)
    keep_top_p(candidates, SamplingParams(top_p=top_p))
    return list(range(V)) if candidates.ids is None else candidates.ids.tolist()


@pytest.mark.parametrize("spread", [0.0, 0.05, 1.0, 4.0])
def test_estimated_cuts_at_top_p_are_the_exact_ones_even_on_the_boundaries(spread: float) -> None:
    logits = random_logits(1, V, seed=3, spread=spread)[0].round(2)
    soft = softmax(logits, float(logits.max()))
    ranked = soft.weights[np.argsort(-logits, kind="stable")]
    boundaries = (np.add.accumulate(ranked) / soft.total)[:: V // 12].tolist()
    for top_p in (0.25, 0.9, 0.999999, 1 - 2**-53, 1e-12, *boundaries):
        for close in (top_p, float(np.nextafter(top_p, 0)), float(np.nextafter(top_p, 1))):
            if close < 1.0:
                assert kept_at(logits, close, is_exact=False) == kept_at(logits, close, is_exact=True)


def test_a_number_on_a_boundary_falls_on_the_token_behind_it() -> None:
    four = Candidates(None, np.zeros(4, np.float32), 0.0)
    assert [draw(four, number) for number in (0.0, 0.25, 0.5, 0.75, 0.2499)] == [0, 1, 2, 3, 0]


def test_estimated_cuts_at_min_p_are_the_exact_ones() -> None:
    logits = random_logits(1, V, seed=4, spread=2.0)[0]
    weights = softmax(logits, float(logits.max())).weights
    for min_p in (0.5, 1e-3, float(weights[7]), float(np.nextafter(weights[7], 1))):
        candidates = candidates_of(logits, is_exact=False)
        keep_min_p(candidates, SamplingParams(min_p=min_p))
        assert np.array_equal(candidates.ids, np.flatnonzero(weights >= min_p))
