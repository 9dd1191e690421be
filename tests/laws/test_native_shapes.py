"""Models of any size run natively, with the same bits however they are run, and float32 near the reference; no step,
however wrong, brings the process down."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.native import KVType, native_executor, plan_of
from support.tiny_checkpoints import hub_config
from support.tiny_steps import Story, random_parameters, tiny_config, tiny_graph, tiny_spec
from trivium.base.errors import InternalError
from trivium.kernels import native
from trivium.models import build_graph, kv_spec, parse_config
from trivium.runtime.native import NativeExecutor
from trivium.runtime.reference import ReferenceExecutor
from trivium.schedule.step import Step

pytestmark = pytest.mark.skipif(native.load() is None, reason="needs the native kernels")

ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Olmo2ForCausalLM",
    "Phi3ForCausalLM",
)
FORMATS = ("f32", "bf16", "i8_g32", "i4m_g32", "i8_c", "i8_g64 wide")
NUM_PAGES = 12


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, Any]:
    """Sizes of a model, most of them no multiple of anything."""
    num_kv_heads = draw(st.integers(1, 3))
    return {
        "hidden_size": draw(st.integers(1, 100)) * 2,
        "intermediate_size": draw(st.integers(1, 200)),
        "num_hidden_layers": draw(st.integers(1, 2)),
        "num_key_value_heads": num_kv_heads,
        "num_attention_heads": num_kv_heads * draw(st.integers(1, 5)),
        "head_dim": draw(st.integers(1, 40)) * 2,
        "vocab_size": draw(st.integers(2, 300)),
    }


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    changes=sizes(),
    architecture=st.sampled_from(ARCHITECTURES),
    weights=st.sampled_from(FORMATS),
    kv=st.sampled_from(["f32", "bf16", "i8"]),
    lengths=st.lists(st.integers(2, 40), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
)
def test_a_model_of_any_size_runs_alike_in_company_and_in_chunks_and_near_the_reference(
    changes: dict[str, Any], architecture: str, weights: str, kv: KVType, lengths: list[int], seed: int
) -> None:
    config = parse_config(hub_config(architecture, **changes))
    graph = build_graph(config)
    parameters = random_parameters(graph, seed)
    spec = kv_spec(config, page_len=16, element_bytes=4)
    pages = (NUM_PAGES,) * len(spec.groups)
    ours = native_executor(plan_of(graph, config, spec, weights=weights, kv=kv), parameters, pages)
    rng = np.random.default_rng(seed)
    texts = [rng.integers(0, config.vocab_size, length).tolist() for length in lengths]

    together = Story(spec, [list(range(NUM_PAGES)) for _ in spec.groups])
    step = together.step([(together.start(text), len(text)) for text in texts])
    ours.forward(step)
    rows = ours.logits.copy()
    assert np.isfinite(rows).all()
    if weights == kv == "f32":
        theirs = ReferenceExecutor(graph, parameters, config, spec, pages, max_logit_rows=400)
        theirs.forward(step)
        np.testing.assert_allclose(rows, theirs.logits, rtol=1e-4, atol=1e-4)

    apart = Story(spec, [list(range(NUM_PAGES))[::-1] for _ in spec.groups])
    chunks = []
    for text in texts:
        request = apart.start(text)
        for count in (1, len(text) - 1):
            ours.forward(apart.step([(request, count)]))
            chunks.append(ours.logits.copy())
    np.testing.assert_array_equal(np.concatenate(chunks), rows, strict=True)


FIELDS = ("token_ids", "positions", "starts", "kv_lens", "reaches", "logit_rows", "adapter_slot", "state_slot")
NUMBERS = st.one_of(st.integers(-3, 70), st.sampled_from([-(2**31), 2**31 - 1, 2**31 - 16, 2**16, 1 << 24]))
_EXECUTORS: list[NativeExecutor] = []


def executor() -> NativeExecutor:
    """Make a model with windows, once."""
    if not _EXECUTORS:
        config = tiny_config(window=5)
        spec = tiny_spec(config, page_len=16, is_windowed=True)
        graph = tiny_graph(config)
        plan = plan_of(graph, config, spec, weights="i8_g32", kv="bf16")
        _EXECUTORS.append(native_executor(plan, random_parameters(graph), (NUM_PAGES,) * len(spec.groups)))
    return _EXECUTORS[0]


def good_step() -> tuple[Step, Step]:
    """A step of two requests, and the one after it."""
    tale = Story(executor().kv_spec, [list(range(NUM_PAGES)) for _ in executor().kv_spec.groups])
    requests = [tale.start(list(range(1, 24))), tale.start([6, 7, 8])]
    first = tale.step([(requests[0], 20), (requests[1], 2)])
    return first, tale.step([(requests[0], 3), (requests[1], 1)])


@st.composite
def broken_steps(draw: st.DrawFn) -> Step:
    """A step of which some numbers, or some lengths, are not what they should be."""
    step = replace(draw(st.sampled_from(good_step())))
    for name in draw(st.lists(st.sampled_from([*FIELDS, "page_tables", "copies"]), min_size=1, max_size=3)):
        if name == "page_tables":
            tables = [table.copy() for table in step.page_tables]
            table = tables[draw(st.integers(0, len(tables) - 1))]
            table.flat[draw(st.integers(0, table.size - 1))] = draw(NUMBERS)
            step.page_tables = tuple(tables[: draw(st.integers(1, len(tables)))])
        elif name == "copies":
            rows = draw(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=3))
            step.copies = np.array(rows, np.int32).reshape(-1, 3)
        else:
            numbers = getattr(step, name).copy()
            if len(numbers):
                numbers[draw(st.integers(0, len(numbers) - 1))] = draw(NUMBERS)
            setattr(step, name, numbers[: draw(st.integers(0, len(numbers)))] if draw(st.booleans()) else numbers)
    return step


@settings(max_examples=400)
@given(step=broken_steps())
def test_a_wrong_step_is_an_error_and_the_next_one_runs(step: Step) -> None:
    first, after = good_step()
    executor().forward(first)
    executor().forward(after)
    expected = executor().logits.copy()
    with contextlib.suppress(InternalError):  # a change may also leave a step that is right
        executor().forward(step)
    executor().forward(first)
    executor().forward(after)
    np.testing.assert_array_equal(executor().logits, expected, strict=True)
