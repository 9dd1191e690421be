"""Measures of quality against values worked out by hand, and the judgement on them."""

from __future__ import annotations

import argparse
import math

import numpy as np
import pytest

from benchmarks.quality import PROMISES, WEIGHTS, Promise, Row, Scores, compare, cut, join, promise_of, some_of, spread

EXPECTED = np.log(np.array([[1, 1], [3, 1], [3, 1]], np.float32))
"""Logits of the probabilities (1/2, 1/2), (3/4, 1/4), (3/4, 1/4)."""
FOUND = np.log(np.array([[3, 1], [1, 1], [1, 3]], np.float32))
"""Of (3/4, 1/4), (1/2, 1/2), (1/4, 3/4)."""
NEXT = np.array([0, 1, 1])


def scores_with(*, excess: float = 0.0, divergence: float = 0.0, num_equal: int = 100) -> Scores:
    """Make 100 positions of which every one is as much more surprised, and so many agree."""
    return Scores(
        surprise=np.full(100, 2.0 + excess),
        expected=np.full(100, 2.0),
        divergence=np.full(100, divergence),
        agrees=np.arange(100) < num_equal,
    )


def test_perplexity_is_the_geometric_mean_of_one_by_the_probability_of_what_follows() -> None:
    found = compare(FOUND, EXPECTED, NEXT)
    assert found.perplexity == pytest.approx((4 / 3 * 2 * 4 / 3) ** (1 / 3), rel=1e-6)
    assert found.ratio == pytest.approx(found.perplexity / (2 * 4 * 4) ** (1 / 3), rel=1e-6)


def test_divergence_is_that_of_float32_from_the_format_in_nats() -> None:
    found = compare(FOUND, EXPECTED, NEXT)
    by_hand = [
        0.5 * math.log(2 / 3) + 0.5 * math.log(2),
        0.75 * math.log(3 / 2) + 0.25 * math.log(1 / 2),
        0.75 * math.log(3) + 0.25 * math.log(1 / 3),
    ]
    assert found.divergence == pytest.approx(by_hand, rel=1e-6)
    assert found.mean_divergence == pytest.approx(sum(by_hand) / 3, rel=1e-6)


def test_most_likely_tokens_agree_where_they_are_the_same_token() -> None:
    found = compare(FOUND, EXPECTED, NEXT)
    assert found.agrees.tolist() == [True, True, False]  # of equals, the lowest id
    assert found.agreement == pytest.approx(2 / 3)


def test_the_standard_error_is_that_of_paired_differences() -> None:
    found = Scores(
        surprise=np.array([1.0, 2.0, 4.0, 3.0]),
        expected=np.array([1.0, 1.0, 2.0, 2.0]),
        divergence=np.zeros(4),
        agrees=np.ones(4, np.bool_),
    )
    # differences 0, 1, 2, 1: mean 1, variance 2 / 3
    assert found.ratio == pytest.approx(math.e)
    assert found.ratio_error == pytest.approx(math.e * math.sqrt(2 / 3) / 2)


def test_a_shift_of_all_logits_and_large_ones_change_nothing() -> None:
    found = compare(FOUND + np.float32(50), EXPECTED - np.float32(50), NEXT)
    assert found.perplexity == pytest.approx(compare(FOUND, EXPECTED, NEXT).perplexity, rel=1e-5)
    far = np.array([[0, 1000]], np.float32)
    assert compare(far, far, np.array([0])).surprise.tolist() == [1000.0]


def test_many_rows_are_compared_like_each_alone() -> None:
    rng = np.random.default_rng(0)
    found, expected = rng.normal(size=(2, 150, 7)).astype(np.float32)
    ids = rng.integers(0, 7, 150)
    whole = compare(found, expected, ids)
    alone = join([compare(found[i : i + 1], expected[i : i + 1], ids[i : i + 1]) for i in range(150)])
    for name in ("surprise", "expected", "divergence", "agrees"):
        assert (getattr(whole, name) == getattr(alone, name)).all()


@pytest.mark.parametrize(
    ("scores", "missed"),
    [
        (scores_with(), []),
        (scores_with(excess=0.0049, divergence=0.005, num_equal=95), []),
        (scores_with(excess=0.0051), ["ratio off by 0.511%, at most 0.50%"]),
        (scores_with(excess=-0.0051), ["ratio off by 0.509%, at most 0.50%"]),
        (scores_with(divergence=0.0051), ["KL 0.00510, at most 0.005"]),
        (scores_with(num_equal=94), ["top-1 94.00%, at least 95%"]),
        (scores_with(excess=float("nan")), ["ratio off by nan%, at most 0.50%"]),
    ],
)
def test_a_promise_names_what_is_missed_with_value_and_limit(scores: Scores, missed: list[str]) -> None:
    assert PROMISES["own"].missed(scores) == missed


def test_a_row_says_whether_its_promise_is_kept() -> None:
    def row(promise: Promise | None) -> Row:
        scores = scores_with(excess=0.002)
        return Row(weights="bf16", kv="bf16", weight_bytes=2_000_000, scores=scores, promise=promise)

    assert str(row(PROMISES["int8"])).endswith("| 7.4038 | 1.00200 ± 0.00000 | 0.000000 | 100.00% | kept |")
    assert str(row(PROMISES["bf16"])).endswith("| ratio off by 0.200%, at most 0.10% |")
    assert str(row(None)).endswith("| none |")
    assert (row(PROMISES["int8"]).missed, row(None).missed) == ([], [])


@pytest.mark.parametrize(
    ("weights", "kv", "formats", "name"),
    [
        ("auto", "bf16", {"i4m_g32", "i8_g32"}, "own"),
        ("auto", "f32", {"q4_k"}, "own"),
        ("auto", "bf16", {"bf16"}, "bf16"),
        ("auto", "bf16", {"f32"}, "bf16"),
        ("auto", "f32", {"f32"}, "f32"),
        ("auto", "f32", {"f32", "bf16"}, "bf16"),
        ("f32", "f32", {"f32"}, "f32"),
        ("f32", "bf16", {"f32"}, "bf16"),
        ("bf16", "bf16", {"bf16"}, "bf16"),
        ("int8", "bf16", {"i8_g32"}, "int8"),
        ("int4", "bf16", {"i4m_g32"}, None),
        ("auto", "int8", {"bf16"}, None),
    ],
)
def test_what_is_promised_depends_on_the_coarsest_of_weights_and_kv(
    weights: str, kv: str, formats: set[str], name: str | None
) -> None:
    assert promise_of(weights, kv, formats) is (None if name is None else PROMISES[name])


def test_windows_cover_the_text_once_and_begin_as_prompts_do() -> None:
    assert cut([1, 2, 3, 4, 5, 6, 7], [], 3) == [[1, 2, 3], [4, 5, 6]]  # 7 alone scores nothing
    assert cut([1, 2, 3, 4, 5], [9], 3) == [[9, 1, 2], [9, 3, 4], [9, 5]]
    assert cut([1], [], 3) == []


def test_fewer_windows_are_spread_over_the_text() -> None:
    windows = [[number, 0] for number in range(10)]
    assert [first for first, _ in spread(windows, 4)] == [0, 2, 5, 7]
    assert spread(windows, None) == spread(windows, 10) == windows
    for wrong, had in ((0, windows), (11, windows), (None, [])):
        with pytest.raises(ValueError, match=f"the text has {len(had)}, each of up to 512 tokens"):
            spread(had, wrong)


def test_an_unknown_format_is_refused_by_name() -> None:
    assert some_of(WEIGHTS, "int8,auto") == ["int8", "auto"]
    with pytest.raises(argparse.ArgumentTypeError, match="'q4' is none of auto, f32, bf16, int8, int8/64, int4"):
        some_of(WEIGHTS, "int8,q4")
