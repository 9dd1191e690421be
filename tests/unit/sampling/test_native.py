"""The native sampler: close calls go to the exact sums, lists are read as they should be, and what it refuses."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from support.sample_rows import mask_of, random_logits, row
from trivium.base.errors import InternalError
from trivium.kernels import native as kernels
from trivium.kernels import sample as kernel
from trivium.sampling import native, pipeline
from trivium.sampling.softmax import softmax

V = 20_000

needs_native = pytest.mark.skipif(kernels.load() is None, reason="needs the native module")


def both(logits: np.ndarray, rows: list[Any], *args: Any) -> tuple[list[int], list[int]]:
    """Tokens of the native and of the NumPy sampler."""
    native_tokens = native.sample(logits, rows, *args).token_ids.tolist()
    return native_tokens, pipeline.sample(logits, rows, *args).token_ids.tolist()


@needs_native
def test_records_have_the_size_that_the_module_reads() -> None:
    module = kernels.load()
    assert module is not None
    assert kernel.ROW.size == module.SAMPLE_ROW_BYTES


@needs_native
@pytest.mark.parametrize("spread", [0.0, 0.05, 1.0, 4.0])
@pytest.mark.parametrize("isa", ["scalar", None])
def test_cuts_at_top_p_are_exact_even_on_the_boundaries(spread: float, isa: str | None) -> None:
    logits = random_logits(1, V, seed=3, spread=spread)[0].round(2)
    soft = softmax(logits, float(logits.max()))
    ranked = soft.weights[np.argsort(-logits, kind="stable")]
    boundaries = (np.add.accumulate(ranked) / soft.total)[:: V // 12].tolist()
    shares = [0.25, 0.9, 0.999999, 1 - 2**-53, 1e-12, *boundaries]
    close = [p for share in shares for p in (share, np.nextafter(share, 0), np.nextafter(share, 1)) if p < 1.0]
    # Processed logprobs of the last kept token tell exactly where the cut was.
    rows = [row(top_p=float(p), num_logprobs=0, logprobs_mode="processed", choice=i % 128) for i, p in enumerate(close)]
    tiled = np.tile(logits, (len(rows), 1))
    answer, wanted = native.sample(tiled, rows, isa=isa), pipeline.sample(tiled, rows)
    assert answer.logprobs == wanted.logprobs


@needs_native
def test_min_p_keeps_exactly_the_tokens_that_weigh_enough() -> None:
    logits = random_logits(1, V, seed=4, spread=2.0)[0]
    weights = softmax(logits, float(logits.max())).weights
    for min_p in (0.5, 1e-3, 1e-300, float(weights[7]), float(np.nextafter(weights[7], 1))):
        rows = [row(min_p=min_p, num_logprobs=20, logprobs_mode="processed")]
        assert native.sample(logits[None], rows).logprobs == pipeline.sample(logits[None], rows).logprobs


@needs_native
@pytest.mark.parametrize("count", [1, 20, 300, 5000, 19_999])
def test_top_k_breaks_ties_by_id(count: int) -> None:
    logits = random_logits(1, V, seed=5, spread=1.0).round(1)
    rows = [row(top_k=count, typical_p=0.9, choice=i, num_logprobs=20, logprobs_mode="processed") for i in range(20)]
    tiled = np.tile(logits, (20, 1))
    assert native.sample(tiled, rows).logprobs == pipeline.sample(tiled, rows).logprobs


@needs_native
@pytest.mark.parametrize("order", [1, -1])
def test_logits_that_rise_or_fall_with_the_id_are_ranked_alike(order: int) -> None:
    """The likeliest tokens all stand in one chunk, where the maxima of groups tell least."""
    logits = np.linspace(-8, 8, V, dtype=np.float32)[None, ::order].copy()
    rows = [row(top_k=50, num_logprobs=20)]
    assert native.sample(logits, rows).logprobs == pipeline.sample(logits, rows).logprobs


@needs_native
@pytest.mark.parametrize("history", [3000, 3])
def test_penalties_count_what_was_said_and_nothing_behind_the_position(history: int) -> None:
    generator = np.random.default_rng(6)
    tokens = generator.integers(0, 50, history).tolist()
    logits = random_logits(1, 50, seed=6, spread=1.0)
    for fields in ({"repetition_penalty": 1.2}, {"frequency_penalty": 0.01}, {"presence_penalty": 1.0}):
        for position in (history, history - 1):
            rows = [row(tokens=tokens, position=position, prompt_len=2, seed=seed, **fields) for seed in range(30)]
            answer, wanted = both(np.tile(logits, (30, 1)), rows)
            assert answer == wanted


@needs_native
def test_any_sequence_of_ids_will_do() -> None:
    logits = random_logits(1, 50, seed=8)
    fields: dict[str, Any] = {"prompt_len": 1, "repetition_penalty": 1.5, "held_back_ids": (4,), "logit_bias": {4: 9.0}}
    plain = native.sample(logits, [row(tokens=[1, 2, 3], bad_word_ids=[[2, 3, 9]], **fields)])
    for kind in (tuple, np.array):
        rows = [row(tokens=kind([1, 2, 3]), bad_word_ids=(kind([2, 3, 9]),), **fields)]
        assert native.sample(logits, rows).token_ids.tolist() == plain.token_ids.tolist()


@needs_native
def test_rows_over_all_threads_answer_as_in_one() -> None:
    logits = random_logits(40, V, seed=9, spread=2.0)
    rows = [row(choice=i, top_p=0.9, num_logprobs=3) for i in range(40)]
    before = kernels.describe().threads
    answers = []
    try:
        for threads in (1, 2, 5):
            kernels.set_num_threads(threads)
            answers.append(native.sample(logits, rows))
    finally:
        kernels.set_num_threads(before)
    for one, other in pairwise(answers):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert one.logprobs == other.logprobs


@needs_native
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"target": 64}, "target of row 0 is token 64; the vocabulary has 64"),
        ({"held_back_ids": [64]}, "held-back tokens of row 0 name token 64"),
        ({"logit_bias": {64: 1.0}}, "biases of row 0 name token 64"),
        ({"bad_word_ids": [[1, 64]]}, "bad words of row 0 name token 64"),
        ({"tokens": [1, 64], "repetition_penalty": 2.0}, "known tokens of row 0 name token 64"),
        ({"held_back_ids": [-1]}, "-1 is not a token id"),
    ],
)
def test_ids_outside_the_vocabulary_are_our_own_fault(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InternalError, match=message):
        native.sample(random_logits(1, 64, seed=0), [row(**fields)])


@needs_native
def test_arguments_that_do_not_fit_are_our_own_fault() -> None:
    logits = random_logits(2, 64, seed=0)
    with pytest.raises(InternalError, match="2 rows"):
        native.sample(logits[:1], [row(), row()])
    with pytest.raises(InternalError, match="seed was never chosen"):
        native.sample(logits[:1], [row(seed=None)])
    assert native.sample(logits[:1], [row(seed=None, temperature=0.0)]).token_ids[0] >= 0
    with pytest.raises(InternalError, match="mask 1 of 1"):
        native.sample(logits[:1], [row()], mask_of([3], 64), np.array([1], np.int32))
    with pytest.raises(InternalError, match="masks have 1 words; 64 tokens take 2"):
        native.sample(logits[:1], [row()], mask_of([3], 32), np.array([0], np.int32))
    with pytest.raises(InternalError):
        native.sample(logits.astype(np.float64), [row(), row()])
    with pytest.raises(InternalError, match="dense"):
        native.sample(np.asfortranarray(logits), [row(), row()])


def test_no_rows_give_no_tokens() -> None:
    assert len(native.sample(np.zeros((0, V), np.float32), []).token_ids) == 0


def test_without_native_kernels_numpy_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "load", lambda: None)
    logits = random_logits(3, 64, seed=1)
    rows = [row(choice=i, num_logprobs=2) for i in range(3)]
    answer, wanted = native.sample(logits, rows), pipeline.sample(logits, rows)
    assert answer.token_ids.tolist() == wanted.token_ids.tolist()
    assert answer.logprobs == wanted.logprobs
    with pytest.raises(InternalError, match="no native kernels"):
        kernel.sample(logits, bytearray(), [], None)


@needs_native
def test_a_sampler_that_is_kept_answers_as_a_fresh_one() -> None:
    rng = np.random.default_rng(5)
    sampler, steady = native.Sampler(), [row(choice=i, temperature=0.7, top_p=0.9, position=3) for i in range(5)]
    others = [
        [row(num_logprobs=3, best_of=2)],
        [row(choice=i, logit_bias={7: 50.0}, num_logprobs=i) for i in range(8)],
        [],
        [row(choice=9, held_back_ids=(1, 2), temperature=0.0)],
    ]
    for step in range(12):
        rows = others[step // 3] if step % 3 == 2 else steady
        logits = random_logits(len(rows), 256, seed=int(rng.integers(1 << 30)))
        answer, wanted = sampler.sample(logits, rows), native.sample(logits, rows)
        assert answer.token_ids.tolist() == wanted.token_ids.tolist()
        assert answer.logprobs == wanted.logprobs
        assert (answer.chosen_logprobs is None) == (wanted.chosen_logprobs is None)
        for moved in steady:
            moved.position += 1


@needs_native
def test_rows_that_move_on_are_drawn_at_their_new_positions() -> None:
    sampler, rows = native.Sampler(), [row(temperature=1.0, position=0)]
    logits = random_logits(1, V, seed=8, spread=0.01)
    drawn = set()
    for position in range(8):
        rows[0].position = position
        drawn.add(int(sampler.sample(logits, rows).token_ids[0]))
    assert len(drawn) == 8  # a stale position would draw one token again and again


@needs_native
def test_tokens_held_back_from_now_on_are_not_drawn() -> None:
    sampler, rows = native.Sampler(), [row(temperature=0.0)]
    logits = random_logits(1, 64, seed=2)
    best = int(sampler.sample(logits, rows).token_ids[0])
    rows[0].held_back_ids = (best,)
    assert int(sampler.sample(logits, rows).token_ids[0]) != best
    rows[0].held_back_ids = ()
    assert int(sampler.sample(logits, rows).token_ids[0]) == best


@needs_native
def test_a_list_whose_rows_were_exchanged_is_read_anew() -> None:
    sampler, rows = native.Sampler(), [row(temperature=1.0)]
    logits = random_logits(1, 64, seed=2)
    sampler.sample(logits, rows)
    rows[0] = row(temperature=0.0)
    assert int(sampler.sample(logits, rows).token_ids[0]) == int(logits[0].argmax())
    rows[0] = row(logit_bias={7: 100.0}, temperature=0.0)
    assert int(sampler.sample(logits, rows).token_ids[0]) == 7
