"""Adapters in executors: native near the reference for every architecture, loaded and unloaded between steps, checked
before they are taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from support import fused_graphs
from support.drawn_adapters import (
    drawn_adapter,
    merged_parameters,
    multiplied,
    native_for,
    reference_for,
    with_adapters,
)
from support.native import native_executor, plan_of, quantized
from support.tiny_checkpoints import hub_config
from support.tiny_steps import Story, random_parameters, tiny_config, tiny_graph, tiny_spec
from trivium.base.errors import CheckpointError, InternalError
from trivium.kernels import native
from trivium.models import build_graph, kv_spec, parse_config
from trivium.runtime.adapters import LowRank
from trivium.runtime.native import NativeExecutor
from trivium.runtime.reference import ReferenceExecutor
from trivium.weights.kinds import dequantize

needs_kernels = pytest.mark.skipif(native.load() is None, reason="needs the native kernels")

NUM_PAGES = 40
RANKS = (1, 5, 17)
CONFIG = tiny_config()
GRAPH = tiny_graph(CONFIG)
SPEC = tiny_spec(CONFIG, page_len=16)


def new_story() -> Story:
    return Story(SPEC, [list(range(NUM_PAGES)) for _ in SPEC.groups])


Executor = NativeExecutor | ReferenceExecutor


@pytest.fixture(
    scope="module",
    params=[pytest.param(native_for, marks=needs_kernels, id="native"), pytest.param(reference_for, id="reference")],
)
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    """An executor whose adapters each test takes out again."""
    made = request.param(GRAPH, CONFIG, SPEC, NUM_PAGES)
    yield made
    made.close()


def run(executor: Executor, slot: int, length: int = 9) -> np.ndarray:
    """Logits of one request that begins here."""
    story = new_story()
    tokens = np.random.default_rng(3).integers(0, CONFIG.vocab_size, length).tolist()
    executor.forward(with_adapters(story.step([(story.start(tokens), length)]), [slot]))
    return executor.logits.copy()


@needs_kernels
@pytest.mark.parametrize("name", fused_graphs.MODEL_NAMES)
def test_native_is_near_the_reference_with_mixed_adapters(name: str) -> None:
    config, graph = fused_graphs.golden_config(name), fused_graphs.golden_graph(name)
    spec = kv_spec(config, page_len=16, element_bytes=4)
    ours, theirs = (make(graph, config, spec, NUM_PAGES) for make in (native_for, reference_for))
    for slot, rank in enumerate(RANKS):
        adapter = drawn_adapter(graph, slot, rank, share=0.5 if slot == 1 else 1.0)
        for executor in (ours, theirs):
            executor.load_adapter(slot, adapter)
    rng = np.random.default_rng(8)
    story = Story(spec, [list(range(NUM_PAGES)) for _ in spec.groups])
    running = [story.start(rng.integers(0, config.vocab_size, 30).tolist(), 64) for _ in range(5)]
    slots = [0, -1, 2, 0, 1]
    for counts, rows in (((14, 20, 1, 7, 3), "all"), ((1, 1, 9, 1, 4), "last"), ((1, 1, 1, 1, 1), "all")):
        step = with_adapters(story.step(list(zip(running, counts, strict=True)), rows=rows), slots)
        ours.forward(step)
        theirs.forward(step)
        np.testing.assert_allclose(ours.logits, theirs.logits, rtol=0, atol=1e-4)


@needs_kernels
@pytest.mark.parametrize("name", fused_graphs.MODEL_NAMES)
def test_adapters_change_the_rows_of_their_requests_and_no_others(name: str) -> None:
    config, graph = fused_graphs.golden_config(name), fused_graphs.golden_graph(name)
    spec = kv_spec(config, page_len=16, element_bytes=4)
    ours = native_for(graph, config, spec, NUM_PAGES)
    ours.load_adapter(0, drawn_adapter(graph, 0, 4))
    ours.load_adapter(1, drawn_adapter(graph, 1, 4, share=0.5))
    story = Story(spec, [list(range(NUM_PAGES)) for _ in spec.groups])
    step = story.step([(story.start(list(range(first, first + 9)), 64), 9) for first in range(1, 6)], rows="last")
    ours.forward(step)
    plain = ours.logits.copy()
    slots = [0, -1, 1, 0, -1]
    ours.forward(with_adapters(step, slots))
    changed = np.abs(ours.logits - plain).max(axis=1)
    assert [difference > 0.01 for difference in changed] == [slot >= 0 for slot in slots]
    assert [difference == 0 for difference in changed] == [slot < 0 for slot in slots]


@needs_kernels
@pytest.mark.parametrize("name", ["llama-gqa", "qwen3-window-biased", "gemma2-untied-uncapped"])
def test_an_adapter_is_what_is_merged_into_the_weights(name: str) -> None:
    config, graph = fused_graphs.golden_config(name), fused_graphs.golden_graph(name)
    spec = kv_spec(config, page_len=16, element_bytes=4)
    adapter = drawn_adapter(graph, 4, 6)
    for embedding in {node.inputs[1] for node in graph.nodes if node.op == "embed"}:
        adapter.pop(embedding, None)
    ours = native_for(graph, config, spec, NUM_PAGES)
    ours.load_adapter(0, adapter)
    parameters = merged_parameters(graph, random_parameters(graph), adapter)
    merged = native_executor(plan_of(graph, config, spec), parameters, (NUM_PAGES,) * len(spec.groups))
    story = Story(spec, [list(range(NUM_PAGES)) for _ in spec.groups])
    step = story.step([(story.start(list(range(1, 24)), 64), 23)])
    ours.forward(with_adapters(step, [0]))
    merged.forward(step)
    np.testing.assert_allclose(ours.logits, merged.logits, rtol=0, atol=1e-4)


@needs_kernels
@pytest.mark.parametrize("head_width", [8, 32], ids=["heads rounded apart", "heads rounded where they are attended"])
@pytest.mark.parametrize(("weights", "kv"), [("i8_g32", "bf16"), ("i4m_g32", "bf16"), ("bf16", "bf16")])
def test_on_rounded_weights_an_adapter_is_what_is_merged_into_them(weights: str, kv: str, head_width: int) -> None:
    config = parse_config(hub_config("LlamaForCausalLM", head_dim=head_width))
    graph, spec = build_graph(config), kv_spec(config, page_len=16, element_bytes=4)
    adapter = drawn_adapter(graph, 4, 6)
    ours = native_for(graph, config, spec, NUM_PAGES, weights=weights, kv=kv)  # type: ignore[arg-type]
    ours.load_adapter(0, adapter)
    rounded = {
        name: dequantize(quantized(value, weights)) if value.ndim > 1 else value
        for name, value in random_parameters(graph).items()
    }
    merged = native_executor(plan_of(graph, config, spec), merged_parameters(graph, rounded, adapter), (NUM_PAGES,))
    story = Story(spec, [list(range(NUM_PAGES)) for _ in spec.groups])
    step = story.step([(story.start(list(range(1, 24)), 64), 23)])
    ours.forward(with_adapters(step, [0]))
    merged.forward(step)
    # What activations and KV lose by rounding; an operand that were not written would be off by more than all of it.
    spread = float(merged.logits.std())
    assert np.abs(ours.logits - merged.logits).max() < 0.25 * spread
    assert np.abs(ours.logits - merged.logits).mean() < 0.03 * spread


def test_adapters_come_and_go_between_steps(executor: Executor) -> None:
    one, other = (drawn_adapter(GRAPH, seed, rank) for seed, rank in ((1, 3), (2, 40)))
    plain = run(executor, -1)
    executor.load_adapter(0, one)
    with_one = run(executor, 0)
    executor.load_adapter(7, other)
    with_other = run(executor, 7)
    assert np.abs(with_one - plain).max() > 0.01
    assert np.abs(with_other - with_one).max() > 0.01
    np.testing.assert_array_equal(run(executor, 0), with_one)
    executor.unload_adapter(0)
    executor.unload_adapter(7)
    executor.load_adapter(0, other)
    np.testing.assert_array_equal(run(executor, 0), with_other)
    executor.unload_adapter(0)
    np.testing.assert_array_equal(run(executor, -1), plain)


def test_a_step_with_an_adapter_that_is_not_loaded_is_refused_before_it_runs(executor: Executor) -> None:
    executor.load_adapter(1, drawn_adapter(GRAPH, 1, 2))
    try:
        for slot in (0, 2, -2, 5000, 2**31 - 1):
            with pytest.raises(InternalError, match=rf"step\.adapter_slot\[0\] is {slot}: no adapter is loaded there"):
                run(executor, slot)
        story = new_story()
        step = story.step([(story.start([1, 2, 3]), 3)])
        with pytest.raises(InternalError, match="adapter_slot"):
            executor.forward(replace(step, adapter_slot=np.array([1, 1], np.int32)))
    finally:
        executor.unload_adapter(1)


@needs_kernels
def test_an_executor_without_adapters_says_that_it_has_none() -> None:
    with pytest.raises(InternalError, match="step has adapters; this executor has none loaded"):
        run(native_for(GRAPH, CONFIG, SPEC, NUM_PAGES), 0)
    with pytest.raises(InternalError, match="adapters: slot 3 holds none"):
        native_for(GRAPH, CONFIG, SPEC, NUM_PAGES).unload_adapter(3)


@needs_kernels
def test_a_plan_without_the_second_program_takes_no_adapter() -> None:
    plan = plan_of(GRAPH, CONFIG, SPEC)
    plan = replace(plan, programs={"base": plan.programs["base"]})
    executor = native_executor(plan, random_parameters(GRAPH), (NUM_PAGES,))
    with pytest.raises(InternalError, match="Tiny: the plan has no program for adapters"):
        executor.load_adapter(0, drawn_adapter(GRAPH, 1, 2))
    run(executor, -1)


@needs_kernels
def test_a_closed_executor_takes_no_adapter() -> None:
    executor = native_for(GRAPH, CONFIG, SPEC, NUM_PAGES)
    executor.load_adapter(0, drawn_adapter(GRAPH, 1, 2))
    executor.close()
    with pytest.raises(InternalError, match="the executor is closed"):
        executor.load_adapter(1, drawn_adapter(GRAPH, 1, 2))
    with pytest.raises(InternalError, match="the executor is closed"):
        run(executor, 0)


NAME = "layers.0.down.weight"  # [16, 24]


def one_of(
    a_shape: tuple[int, ...], b_shape: tuple[int, ...], name: str = NAME, **changes: float
) -> dict[str, LowRank]:
    a, b = np.ones(a_shape, np.float32), np.ones(b_shape, np.float32)
    if "a" in changes:
        a[0, 0] = changes["a"]
    return {name: LowRank(a, b, changes.get("scale", 1.0))}


BAD = (
    ({}, "the adapter adds to no parameter"),
    (one_of((2, 24), (16, 2), name="layers.9.down.weight"), "adds to layers.9.down.weight, which is no matrix"),
    (one_of((2, 24), (16, 2), name="norm.weight"), "adds to norm.weight, which is no matrix"),
    (one_of((2, 23), (16, 2)), r"A \[2, 23\] and B \[16, 2\] do not fit layers.0.down.weight \[16, 24\]"),
    (one_of((2, 24), (17, 2)), r"must be \[r, 24\] and \[16, r\]"),
    (one_of((2, 24), (16, 3)), r"B \[16, 3\] do not fit"),
    (one_of((0, 24), (16, 0)), "do not fit"),
    (one_of((24,), (16, 1)), "do not fit"),
    (one_of((), (16, 1)), "do not fit"),
    (one_of((2, 24), (16, 2), a=float("nan")), "for layers.0.down.weight are not finite"),
    (one_of((2, 24), (16, 2), scale=float("inf")), "for layers.0.down.weight are not finite"),
)


@pytest.mark.parametrize(("adapter", "message"), BAD)
def test_an_adapter_that_does_not_fit_is_refused_and_takes_no_slot(
    executor: Executor, adapter: dict[str, LowRank], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        executor.load_adapter(0, adapter)
    with pytest.raises(InternalError, match="slot 0 holds none"):
        executor.unload_adapter(0)


def test_a_slot_that_is_taken_or_none_is_refused(executor: Executor) -> None:
    good = one_of((2, 24), (16, 2))
    executor.load_adapter(3, good)
    try:
        with pytest.raises(InternalError, match="slot 3 is taken; unload it first"):
            executor.load_adapter(3, good)
    finally:
        executor.unload_adapter(3)
    with pytest.raises(InternalError, match="slot -1"):
        executor.load_adapter(-1, good)
    for slot in (3, -1, 10**9):
        with pytest.raises(InternalError, match=f"slot {slot} holds none"):
            executor.unload_adapter(slot)


@needs_kernels
def test_native_slots_end_somewhere() -> None:
    with pytest.raises(InternalError, match="slot 4096; slots are 0 to 4095"):
        native_for(GRAPH, CONFIG, SPEC, NUM_PAGES).load_adapter(4096, one_of((2, 24), (16, 2)))


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.float32])
def test_matrices_of_other_types_and_orders_are_taken_as_float32(executor: Executor, dtype: type) -> None:
    rng = np.random.default_rng(1)
    a, b = (np.asfortranarray(rng.integers(-8, 8, shape).astype(dtype)) for shape in ((3, 24), (16, 3)))
    executor.load_adapter(0, {NAME: LowRank(a, b, 0.01)})
    got = run(executor, 0)
    executor.unload_adapter(0)
    exact = [np.ascontiguousarray(each, np.float32) for each in (a, b)]
    executor.load_adapter(0, {NAME: LowRank(exact[0], exact[1], 0.01)})
    np.testing.assert_array_equal(run(executor, 0), got)
    executor.unload_adapter(0)


@needs_kernels
def test_a_trace_of_the_second_program_shows_every_delta_and_ends_in_the_logits() -> None:
    executor = native_for(GRAPH, CONFIG, SPEC, NUM_PAGES)
    adapter = one_of((2, 24), (16, 2))
    executor.load_adapter(0, adapter)
    expected = run(executor, 0)
    story = new_story()
    tokens = np.random.default_rng(3).integers(0, CONFIG.vocab_size, 9).tolist()
    step = with_adapters(story.step([(story.start(tokens), 9)]), [0])
    found = executor.trace(step)
    program = executor.plan.programs["adapters"]
    np.testing.assert_array_equal(found[-1][program.outputs["logits"]], expected)
    asked = set()
    for instruction, written in zip(program.instructions, found, strict=True):
        if instruction.op == "adapter_delta":
            (delta,) = written.values()
            asked.update(instruction.attrs["parameters"])
            is_ours = NAME in instruction.attrs["parameters"]
            assert (np.abs(delta).max() > 0) == is_ours
    assert asked == set(multiplied(GRAPH))
    assert len(executor.timed(step)) == len(program.instructions)
