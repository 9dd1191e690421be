"""LoRA adapters against transformers with peft: committed adapters of golden models, read as peft wrote them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from support.adapter_cases import ADAPTER_CASES
from support.golden import GOLDEN, MODELS, GoldenAnswer, generate_greedily, golden_answers, load_executor, prompt_logits
from support.native import native_from_checkpoint
from trivium.compile.formats import FORMATS
from trivium.compile.options import PassOptions
from trivium.compile.passes.add_adapters import add_adapters
from trivium.config.model import ModelConfig
from trivium.kernels import native
from trivium.models import build_graph, parse_config
from trivium.runtime.native import NativeExecutor
from trivium.runtime.reference import ReferenceExecutor
from trivium.weights.checkpoint import open_checkpoint
from trivium.weights.peft import PeftAdapter, read_peft

ADAPTERS = GOLDEN / "adapters"
BASES = {case.name: case.base for case in ADAPTER_CASES}
NAMES = list(BASES)
TOLERANCE = 1e-4
Executor = NativeExecutor | ReferenceExecutor


def config_of(base: str) -> ModelConfig:
    with open_checkpoint(MODELS / base) as checkpoint:
        return parse_config(checkpoint.hf_config)


@cache
def reference_of(base: str) -> ReferenceExecutor:
    graph = build_graph(config_of(base))
    formats = {param.name: FORMATS["f32"] for param in graph.params if len(param.type.shape) > 1}
    adapted = add_adapters(graph, PassOptions(formats, has_adapters=True))
    return load_executor(MODELS / base, max_tokens=256, adapted=adapted)


@cache
def native_of(base: str) -> NativeExecutor:
    return native_from_checkpoint(MODELS / base, max_tokens=256)


KINDS: list[object] = [
    pytest.param(reference_of, id="reference"),
    pytest.param(
        native_of,
        id="native",
        marks=pytest.mark.skipif(native.load() is None, reason="needs the native kernels"),
    ),
]


def read(name: str, executor: Executor) -> PeftAdapter:
    return read_peft(ADAPTERS / name, executor.adapter_shapes, config_of(BASES[name]), max_rank=64)


def answers_of(name: str) -> list[GoldenAnswer]:
    return golden_answers(ADAPTERS / name)


@pytest.mark.parametrize("executor_of", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_logits_and_greedy_tokens_are_those_of_peft(name: str, executor_of: Callable[[str], Executor]) -> None:
    executor = executor_of(BASES[name])
    executor.load_adapter(0, read(name, executor).products)
    try:
        for golden in answers_of(name):
            logits = prompt_logits(executor, golden.prompt, golden.reach, slot=0)[golden.rows]
            np.testing.assert_allclose(logits, golden.logits, rtol=0, atol=TOLERANCE, err_msg=f"reach {golden.reach}")
            drawn = generate_greedily(executor, golden.prompt, golden.reach, len(golden.greedy), chunk_len=7, slot=0)
            assert drawn == golden.greedy, f"reach {golden.reach}"
    finally:
        executor.unload_adapter(0)


@pytest.mark.parametrize("name", NAMES)
def test_another_scale_would_be_noticed(name: str) -> None:
    executor = reference_of(BASES[name])
    adapter = {key: replace(one, scale=0.9 * one.scale) for key, one in read(name, executor).products.items()}
    executor.load_adapter(0, adapter)
    golden = answers_of(name)[1]
    logits = prompt_logits(executor, golden.prompt, golden.reach, slot=0)[golden.rows]
    executor.unload_adapter(0)
    assert np.abs(logits - golden.logits).max() > 10 * TOLERANCE


def test_every_committed_adapter_has_a_case() -> None:
    assert sorted(path.name for path in ADAPTERS.iterdir()) == sorted(NAMES)
