"""Weights: bit-equal to their definition, close to the true exponential, estimates within their slack."""

from __future__ import annotations

import math

import numpy as np

from support.scalar_sampler import left_to_right, weight_of
from trivium.sampling.softmax import estimate, softmax, weights_of


def some_arguments() -> np.ndarray:
    generator = np.random.default_rng(2)
    edges = [0.0, -0.0, -1e-300, -0.34657359, -0.34657360, -707.999, -708.0, -708.001, -1e9, -math.inf]
    return np.concatenate([edges, -generator.exponential(20.0, 40000), -generator.uniform(0, 1, 2000)])


def test_weights_equal_the_definition_to_the_last_bit() -> None:
    x = some_arguments()
    assert weights_of(x).tolist() == [weight_of(value) for value in x.tolist()]


def test_weights_are_within_two_units_of_the_true_exponential() -> None:
    x = some_arguments()
    x = x[x >= -708]
    true = np.exp(x.astype(np.longdouble))
    assert float(np.abs(weights_of(x) / true - 1).max()) < 5e-16


def test_the_total_is_the_plain_sum_from_the_left() -> None:
    logits = np.random.default_rng(3).normal(0, 4, 5000).astype(np.float32)
    soft = softmax(logits, float(logits.max()), 0.8)
    assert soft.total == left_to_right(soft.weights.tolist())


def test_estimated_sums_lie_within_their_slack() -> None:
    logits = np.random.default_rng(4).normal(0, 0.5, 1 << 20).astype(np.float32)
    exact = softmax(logits, float(logits.max()))
    guess = estimate(logits, float(logits.max()))
    error = np.abs(np.cumsum(guess.weights) - np.cumsum(exact.weights)).max() / exact.total
    assert error < guess.slack / 10
    assert abs(guess.total - exact.total) / exact.total < guess.slack / 10
