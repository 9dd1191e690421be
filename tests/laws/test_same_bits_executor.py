"""A request's logits are the same bits alone, in company, in chunks, in other pages, and after page copies."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.tiny_steps import (
    RunningRequest,
    Story,
    random_parameters,
    tiny_config,
    tiny_graph,
    tiny_spec,
)
from trivium.runtime.reference import ReferenceExecutor

NUM_PAGES = 640
VARIANTS = ("plain", "window", "windowed group", "softcap")


@cache
def executor(variant: str, page_len: int) -> ReferenceExecutor:
    """Make an executor with the project's kernels; steps overwrite what they need, so tests may share it."""
    window = 5 if variant.startswith("window") else None
    config = tiny_config(window=window, softcap=4.0 if variant == "softcap" else None)
    graph = tiny_graph(config)
    spec = tiny_spec(config, page_len=page_len, is_windowed=variant == "windowed group")
    num_pages = (NUM_PAGES,) * len(spec.groups)
    return ReferenceExecutor(graph, random_parameters(graph), config, spec, num_pages, max_logit_rows=400)


def story(variant: str, page_len: int, shuffle_seed: int | None = None) -> Story:
    """Start over with all pages free, given out in ascending or in shuffled order."""
    spec = executor(variant, page_len).kv_spec
    order = np.arange(NUM_PAGES)[::-1].copy()
    if shuffle_seed is not None:
        np.random.default_rng(shuffle_seed).shuffle(order)
    return Story(spec, [order.tolist() for _ in spec.groups])


def tokens_of(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 61, length).tolist()


@cache
def alone(variant: str, page_len: int, seed: int, length: int) -> np.ndarray:
    """Logits [length, V] of a request that runs alone, whole, in the first pages."""
    lonely = story(variant, page_len)
    executor(variant, page_len).forward(lonely.step([(lonely.start(tokens_of(seed, length)), length)]))
    return executor(variant, page_len).logits.copy()


def run_chunks(variant: str, page_len: int, tale: Story, request: RunningRequest, chunk: int) -> np.ndarray:
    """Run a request alone to its end in chunks; return its logits [length, V]."""
    rows = []
    while request.computed_len < len(request.tokens):
        count = min(chunk, len(request.tokens) - request.computed_len)
        executor(variant, page_len).forward(tale.step([(request, count)]))
        rows.append(executor(variant, page_len).logits.copy())
        tale.drop_out_of_window(request)
    return np.concatenate(rows)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_of_any_size_give_the_same_bits(variant: str, chunk: int) -> None:
    tale = story(variant, 16)
    rows = run_chunks(variant, 16, tale, tale.start(tokens_of(3, 131)), chunk)
    np.testing.assert_array_equal(rows, alone(variant, 16, 3, 131), strict=True)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("page_len", [1, 3, 48])
def test_pages_of_any_length_give_the_same_bits(variant: str, page_len: int) -> None:
    np.testing.assert_array_equal(alone(variant, page_len, 5, 97), alone(variant, 16, 5, 97), strict=True)


requests = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 90)), min_size=1, max_size=5)


@settings(max_examples=25, deadline=None)
@given(
    variant=st.sampled_from(VARIANTS),
    page_len=st.sampled_from([1, 16]),
    asked=requests,
    shuffle_seed=st.integers(0, 9),
    data=st.data(),
)
def test_company_order_chunks_and_places_of_pages_change_no_bit(
    variant: str, page_len: int, asked: list[tuple[int, int]], shuffle_seed: int, data: st.DataObject
) -> None:
    tale = story(variant, page_len, shuffle_seed)
    running = [tale.start(tokens_of(seed, length)) for seed, length in asked]
    rows: list[list[np.ndarray]] = [[] for _ in running]
    while unfinished := [idx for idx, each in enumerate(running) if each.computed_len < len(each.tokens)]:
        chosen = data.draw(st.permutations(unfinished))[: data.draw(st.integers(1, len(unfinished)))]
        parts = []
        for idx in chosen:
            left = len(running[idx].tokens) - running[idx].computed_len
            parts.append((
                running[idx],
                data.draw(st.sampled_from([1, 7, 64, left]).map(lambda size, most=left: min(size, most))),
            ))
        executor(variant, page_len).forward(tale.step(parts))
        ends = np.cumsum([count for _, count in parts])[:-1]
        for idx, piece in zip(chosen, np.split(executor(variant, page_len).logits, ends), strict=True):
            rows[idx].append(piece.copy())
            tale.drop_out_of_window(running[idx])
    for (seed, length), pieces in zip(asked, rows, strict=True):
        np.testing.assert_array_equal(np.concatenate(pieces), alone(variant, page_len, seed, length), strict=True)


@settings(max_examples=15, deadline=None)
@given(page_len=st.sampled_from([1, 16]), prefix_len=st.integers(1, 60), length=st.integers(61, 90))
def test_a_copied_prefix_gives_the_same_bits_and_protects_its_source(
    page_len: int, prefix_len: int, length: int
) -> None:
    variant = "plain"
    tale = story(variant, page_len)
    source = tale.start(tokens_of(1, length))
    run_chunks(variant, page_len, tale, source, 64)
    # The twin shares whole pages and copies the partly shared last one, as a prefix hit does.
    twin = tale.start(tokens_of(1, prefix_len) + tokens_of(2, 20))
    num_whole, rest = divmod(prefix_len, page_len)
    twin.pages[0] = source.pages[0][:num_whole]
    copies = []
    if rest:
        twin.pages[0].append(tale.free[0].pop())
        copies.append((0, source.pages[0][num_whole], twin.pages[0][num_whole]))
    twin.computed_len = prefix_len
    executor(variant, page_len).forward(tale.step([(twin, 20)], copies=copies))
    got = executor(variant, page_len).logits.copy()
    plain = story(variant, page_len, 1)
    expected = run_chunks(variant, page_len, plain, plain.start(list(twin.tokens)), 64)
    np.testing.assert_array_equal(got, expected[prefix_len:], strict=True)


def test_numpy_elementwise_functions_and_reductions_treat_rows_alone() -> None:
    rng = np.random.default_rng(0)
    for width in (1, 3, 8, 17, 64, 128, 576, 1536, 4097):
        x = rng.standard_normal((37, width)).astype(np.float32) * 4
        for function in (np.exp, np.tanh, np.sqrt, lambda a: np.sum(a, axis=-1), lambda a: np.cumsum(a, axis=-1)):
            with np.errstate(invalid="ignore"):
                whole = function(x)
                for start, end in ((0, 1), (5, 6), (5, 8), (20, 37)):
                    np.testing.assert_array_equal(function(x[start:end].copy()), whole[start:end])
