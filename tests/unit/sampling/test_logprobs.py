"""Logprobs: raw and processed values, ranks, alternatives, and that nothing infinite ever leaves."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from support.sample_rows import mask_of, random_logits, row
from support.scalar_sampler import edited_logits, kept_weights, raw_logprob
from trivium.sampling.batch import TokenLogprobs
from trivium.sampling.pipeline import sample

V = 300


def report_of(logits: np.ndarray, **fields: Any) -> TokenLogprobs:
    report = sample(logits[None], [row(**{"num_logprobs": 5, **fields})]).logprobs[0]
    assert report is not None
    return report


def test_raw_logprobs_are_the_log_softmax_of_the_logits() -> None:
    logits = random_logits(1, V, seed=1)[0]
    report = report_of(logits, temperature=0.7, top_k=3, logit_bias={4: 50.0})
    assert report.token_id == 4
    assert report.logprob == pytest.approx(raw_logprob(logits.tolist(), 4), abs=1e-12)
    order = sorted(range(V), key=lambda t: (-logits[t], t))
    assert report.rank == order.index(4) + 1
    assert report.top_ids == tuple(order[:5])
    assert report.top_logprobs == pytest.approx([raw_logprob(logits.tolist(), t) for t in order[:5]], abs=1e-12)


@pytest.mark.parametrize("count", [0, 1, 20])
def test_as_many_alternatives_as_asked_for(count: int) -> None:
    report = report_of(random_logits(1, V, seed=2)[0], num_logprobs=count)
    assert len(report.top_ids) == len(report.top_logprobs) == count
    assert len(report_of(np.zeros(3, np.float32), num_logprobs=20).top_ids) == 3


def test_equal_logits_rank_by_id() -> None:
    report = report_of(np.zeros(V, np.float32), target=7)
    assert report.rank == 8
    assert report.top_ids == (0, 1, 2, 3, 4)
    assert report.logprob == pytest.approx(-math.log(V), abs=1e-12)


def test_nothing_is_reported_unless_asked_for() -> None:
    sampled = sample(random_logits(2, V, seed=3), [row(), row(target=4)])
    assert sampled.logprobs == [None, None]
    assert sampled.chosen_logprobs is None
    assert sampled.token_ids[1] == 4


def test_filters_and_penalties_leave_scores_of_known_tokens_alone() -> None:
    logits = random_logits(1, V, seed=4)[0]
    plain = report_of(logits, target=9, temperature=0)
    odd = report_of(logits, target=9, top_k=1, temperature=0.3, logit_bias={9: -100.0}, logprobs_mode="processed")
    assert plain == odd


def test_processed_logprobs_describe_the_distribution_drawn_from() -> None:
    logits = random_logits(1, V, seed=5)[0]
    fields: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.4, "logprobs_mode": "processed"}
    report = report_of(logits, num_logprobs=20, **fields)
    one = row(**fields)
    weights = kept_weights(edited_logits(logits.tolist(), one, None), one)
    total = sum(weights.values())
    assert set(report.top_ids) <= set(weights)
    for token, logprob in zip(report.top_ids, report.top_logprobs, strict=True):
        assert logprob == pytest.approx(math.log(weights[token] / total), abs=1e-12)
    assert report.logprob == pytest.approx(math.log(weights[report.token_id] / total), abs=1e-12)


def test_processed_alternatives_leave_out_what_cannot_be_drawn() -> None:
    logits = random_logits(1, V, seed=6)[0]
    report = report_of(logits, top_k=2, num_logprobs=20, logprobs_mode="processed")
    assert len(report.top_ids) == 2
    assert sum(math.exp(value) for value in report.top_logprobs) == pytest.approx(1.0)


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"top_k": 1}])
def test_a_token_without_alternative_has_processed_logprob_zero(fields: dict[str, Any]) -> None:
    report = report_of(random_logits(1, V, seed=7)[0], logprobs_mode="processed", **fields)
    assert (report.logprob, report.rank, report.top_ids, report.top_logprobs) == (0.0, 1, (report.token_id,), (0.0,))


def test_a_forced_token_has_processed_logprob_zero() -> None:
    logits = random_logits(1, V, seed=8)
    rows = [row(num_logprobs=3, logprobs_mode="processed")]
    report = sample(logits, rows, mask_of([11], V), np.zeros(1, np.int32)).logprobs[0]
    assert report == TokenLogprobs(11, 0.0, 1, (11,), (0.0,))


@pytest.mark.parametrize("mode", ["raw", "processed"])
@pytest.mark.parametrize("temperature", [0.0, 1e-4, 1.0, 100.0])
def test_reports_are_strict_json_even_of_extreme_logits(mode: str, temperature: float) -> None:
    logits = np.full(V, -np.inf, np.float32)
    logits[:4] = [3e38, 1.0, -3e38, 0.0]
    report = report_of(logits, num_logprobs=20, temperature=temperature, logprobs_mode=mode)
    json.dumps([report.logprob, *report.top_logprobs], allow_nan=False)
    assert all(value <= 0.0 for value in (report.logprob, *report.top_logprobs))
    assert len(report.top_ids) <= 4
    assert math.isfinite(report_of(logits, target=200).logprob)


def test_best_of_brings_the_raw_logprob_of_each_drawn_token() -> None:
    logits = random_logits(2, V, seed=9)
    sampled = sample(logits, [row(best_of=3, temperature=0.5, top_k=4), row()])
    assert sampled.chosen_logprobs is not None
    wanted = raw_logprob(logits[0].tolist(), int(sampled.token_ids[0]))
    assert sampled.chosen_logprobs.tolist() == [pytest.approx(wanted, abs=1e-12), 0.0]


def test_asking_for_logprobs_does_not_change_the_tokens() -> None:
    logits = random_logits(30, 5000, seed=10, spread=1.0)
    silent = [row(choice=c) for c in range(30)]
    talking = [row(choice=c, num_logprobs=2) for c in range(30)]
    assert sample(logits, silent).token_ids.tolist() == sample(logits, talking).token_ids.tolist()
