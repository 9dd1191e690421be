"""The native executor's law: a request's logits are the same bits alone, in company, in chunks, in any pages, on any
number of threads, in every weight format and KV type; and they are near the reference executor's."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.native import ARITHMETIC, native_executor, plan_of
from support.native import two_threads as two_threads
from support.tiny_steps import RunningRequest, Story, random_parameters, tiny_config, tiny_graph, tiny_spec
from trivium.kernels import native
from trivium.runtime.native import NativeExecutor
from trivium.runtime.reference import ReferenceExecutor

pytestmark = pytest.mark.skipif(native.load() is None, reason="needs the native kernels")

NUM_PAGES = 640
VARIANTS = ("plain", "window", "windowed group", "softcap")


def shape_of(variant: str) -> tuple:
    window = 5 if variant.startswith("window") else None
    config = tiny_config(window=window, softcap=4.0 if variant == "softcap" else None)
    spec = tiny_spec(config, page_len=16, is_windowed=variant == "windowed group")
    return config, tiny_graph(config), spec


@cache
def executor(variant: str, arithmetic: tuple[str, str]) -> NativeExecutor:
    """Make an executor; steps overwrite what they need, so tests may share it."""
    config, graph, spec = shape_of(variant)
    weights, kv = arithmetic
    plan = plan_of(graph, config, spec, weights=weights, kv=kv)
    return native_executor(plan, random_parameters(graph), (NUM_PAGES,) * len(spec.groups))


@cache
def reference(variant: str) -> ReferenceExecutor:
    config, graph, spec = shape_of(variant)
    pages = (NUM_PAGES,) * len(spec.groups)
    return ReferenceExecutor(graph, random_parameters(graph), config, spec, pages, max_logit_rows=400)


def story(variant: str, shuffle_seed: int | None = None) -> Story:
    """Start over with all pages free, given out in ascending or in shuffled order."""
    _, _, spec = shape_of(variant)
    order = np.arange(NUM_PAGES)[::-1].copy()
    if shuffle_seed is not None:
        np.random.default_rng(shuffle_seed).shuffle(order)
    return Story(spec, [order.tolist() for _ in spec.groups])


def tokens_of(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 61, length).tolist()


@cache
def alone(variant: str, arithmetic: tuple[str, str], seed: int, length: int) -> np.ndarray:
    """Logits [length, V] of a request that runs alone, whole, in the first pages."""
    lonely = story(variant)
    executor(variant, arithmetic).forward(lonely.step([(lonely.start(tokens_of(seed, length)), length)]))
    rows = executor(variant, arithmetic).logits.copy()
    assert np.isfinite(rows).all()  # equality of arrays takes NaN for equal to NaN
    return rows


def run_chunks(
    variant: str, arithmetic: tuple[str, str], tale: Story, request: RunningRequest, chunk: int
) -> np.ndarray:
    """Run a request alone to its end in chunks; return its logits [length, V]."""
    rows = []
    while request.computed_len < len(request.tokens):
        count = min(chunk, len(request.tokens) - request.computed_len)
        executor(variant, arithmetic).forward(tale.step([(request, count)]))
        rows.append(executor(variant, arithmetic).logits.copy())
        tale.drop_out_of_window(request)
    return np.concatenate(rows)


@pytest.mark.parametrize("arithmetic", ARITHMETIC, ids="/".join)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_of_any_size_give_the_same_bits(variant: str, arithmetic: tuple[str, str], chunk: int) -> None:
    tale = story(variant)
    rows = run_chunks(variant, arithmetic, tale, tale.start(tokens_of(3, 331)), chunk)
    np.testing.assert_array_equal(rows, alone(variant, arithmetic, 3, 331), strict=True)


@pytest.mark.parametrize("arithmetic", ARITHMETIC, ids="/".join)
@pytest.mark.parametrize("threads", [1, 3, 4])
def test_any_number_of_threads_gives_the_same_bits(arithmetic: tuple[str, str], threads: int) -> None:
    expected = alone("window", arithmetic, 3, 331)
    native.set_num_threads(threads)
    tale = story("window", 4)
    rows = run_chunks("window", arithmetic, tale, tale.start(tokens_of(3, 331)), 64)
    np.testing.assert_array_equal(rows, expected, strict=True)


requests = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 300)), min_size=1, max_size=6)


@settings(max_examples=40, deadline=None)
@given(
    variant=st.sampled_from(VARIANTS),
    arithmetic=st.sampled_from(ARITHMETIC),
    asked=requests,
    shuffle_seed=st.integers(0, 9),
    data=st.data(),
)
def test_company_order_chunks_and_places_of_pages_change_no_bit(
    variant: str,
    arithmetic: tuple[str, str],
    asked: list[tuple[int, int]],
    shuffle_seed: int,
    data: st.DataObject,
) -> None:
    tale = story(variant, shuffle_seed)
    running = [tale.start(tokens_of(seed, length)) for seed, length in asked]
    rows: list[list[np.ndarray]] = [[] for _ in running]
    while unfinished := [idx for idx, each in enumerate(running) if each.computed_len < len(each.tokens)]:
        chosen = data.draw(st.permutations(unfinished))[: data.draw(st.integers(1, len(unfinished)))]
        parts, room = [], 400
        for idx in chosen:
            left = min(len(running[idx].tokens) - running[idx].computed_len, room)
            if left == 0:
                continue
            count = min(left, data.draw(st.sampled_from([1, 7, 64, left])))
            parts.append((idx, count))
            room -= count
        executor(variant, arithmetic).forward(tale.step([(running[idx], count) for idx, count in parts]))
        ends = np.cumsum([count for _, count in parts])[:-1]
        for (idx, _), piece in zip(parts, np.split(executor(variant, arithmetic).logits, ends), strict=True):
            rows[idx].append(piece.copy())
            tale.drop_out_of_window(running[idx])
    for (seed, length), pieces in zip(asked, rows, strict=True):
        np.testing.assert_array_equal(np.concatenate(pieces), alone(variant, arithmetic, seed, length), strict=True)


@settings(max_examples=15, deadline=None)
@given(arithmetic=st.sampled_from(ARITHMETIC), prefix_len=st.integers(1, 160), length=st.integers(161, 190))
def test_shared_pages_and_a_copied_rest_give_the_same_bits_and_protect_their_source(
    arithmetic: tuple[str, str], prefix_len: int, length: int
) -> None:
    tale = story("plain")
    source = tale.start(tokens_of(1, length))
    run_chunks("plain", arithmetic, tale, source, 64)
    # Twins share whole pages with the source and copy the partly shared last one, as prefix hits do.
    twins, copies = [], []
    num_whole, rest = divmod(prefix_len, 16)
    for seed in (2, 3, 4):
        twin = tale.start(tokens_of(1, prefix_len) + tokens_of(seed, 20))
        twin.pages[0] = source.pages[0][:num_whole]
        if rest:
            twin.pages[0].append(tale.free[0].pop())
            copies.append((0, source.pages[0][num_whole], twin.pages[0][num_whole]))
        twin.computed_len = prefix_len
        twins.append(twin)
    first = tale.step([(twin, 1) for twin in twins], copies=copies)
    executor("plain", arithmetic).forward(first)
    got = [executor("plain", arithmetic).logits.copy()]
    executor("plain", arithmetic).forward(tale.step([(twin, 19) for twin in twins]))
    rest_rows = executor("plain", arithmetic).logits.copy()
    for idx, twin in enumerate(twins):
        plain = story("plain", 1)
        expected = run_chunks("plain", arithmetic, plain, plain.start(list(twin.tokens)), 64)[prefix_len:]
        np.testing.assert_array_equal(got[0][idx : idx + 1], expected[:1], strict=True)
        np.testing.assert_array_equal(rest_rows[19 * idx : 19 * idx + 19], expected[1:], strict=True)


@pytest.mark.parametrize("variant", VARIANTS)
def test_float32_is_near_the_reference(variant: str) -> None:
    lonely = story(variant)
    reference(variant).forward(lonely.step([(lonely.start(tokens_of(3, 331)), 331)]))
    got = alone(variant, ("f32", "f32"), 3, 331)
    np.testing.assert_allclose(got, reference(variant).logits, rtol=0, atol=3e-5)


@pytest.mark.parametrize(("arithmetic", "most"), [(("bf16", "bf16"), 0.02), (("i8_g32", "bf16"), 0.05)])
def test_narrow_formats_are_near_the_reference_in_proportion(arithmetic: tuple[str, str], most: float) -> None:
    lonely = story("plain")
    reference("plain").forward(lonely.step([(lonely.start(tokens_of(3, 331)), 331)]))
    expected = reference("plain").logits
    got = alone("plain", arithmetic, 3, 331)
    assert np.linalg.norm(got - expected) < most * np.linalg.norm(expected)


def test_a_trace_names_every_buffer_and_ends_in_the_logits() -> None:
    lonely = story("plain")
    step = lonely.step([(lonely.start(tokens_of(3, 40)), 40)])
    model = executor("plain", ("f32", "f32"))
    found = model.trace(step)
    output = model.plan.programs["base"].outputs["logits"]
    np.testing.assert_array_equal(found[-1][output], alone("plain", ("f32", "f32"), 3, 40), strict=True)
    assert all(np.isfinite(rows).all() for written in found for rows in written.values())


def test_timed_steps_give_the_same_bits_and_a_time_per_instruction() -> None:
    lonely = story("plain")
    model = executor("plain", ("f32", "f32"))
    seconds = model.timed(lonely.step([(lonely.start(tokens_of(3, 40)), 40)]))
    np.testing.assert_array_equal(model.logits, alone("plain", ("f32", "f32"), 3, 40), strict=True)
    assert len(seconds) == len(model.plan.programs["base"].instructions)
    assert (seconds > 0).all()
