"""Make native executors for tests: from arrays, or from a checkpoint, with nothing cached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from support.forms import form_named
from trivium.base.intmath import ceil_div
from trivium.cache.spec import KVSpec
from trivium.compile.build import build_plan
from trivium.compile.emit import PlanFacts
from trivium.config.model import ModelConfig
from trivium.ir.graph import Graph
from trivium.kernels import linear, native
from trivium.models import build_graph, kv_spec, parse_config
from trivium.plan.program import KVStorage, Limits, Plan, Weight
from trivium.runtime.lower import Matrix
from trivium.runtime.native import NativeExecutor, NativeWeights, aligned_zeros
from trivium.weights.bind import bind_parameters
from trivium.weights.checkpoint import open_checkpoint
from trivium.weights.kinds import Codes
from trivium.weights.quantize import quantize

KVType = Literal["f32", "bf16", "i8"]
PAGE_LEN = 16
LIMITS = Limits(max_num_batched_tokens=400, max_logit_rows=400)

ARITHMETIC = (
    ("f32", "f32"),
    ("bf16", "bf16"),
    ("i8_g32", "bf16"),
    ("i8_g64 wide", "bf16"),
    ("i4m_g32", "bf16"),
    ("i8_c", "i8"),
)
"""Weight format and KV type of the laws that hold for each."""


def plan_of(
    graph: Graph,
    config: ModelConfig,
    spec: KVSpec,
    *,
    weights: str = "f32",
    kv: KVType = "f32",
    limits: Limits = LIMITS,
) -> Plan:
    """Compile a graph with all its matrices in one format."""
    formats = {name: form_named(weights) for name, shape in graph.param_shapes().items() if len(shape) == 2}
    facts = PlanFacts(config=config, formats=formats, kv=KVStorage(spec=spec, dtype=kv), limits=limits)
    return build_plan(graph, facts)


def native_executor(plan: Plan, parameters: Mapping[str, np.ndarray], num_pages: tuple[int, ...]) -> NativeExecutor:
    """Pack float32 parameters into the plan's formats and bind them."""
    matrices = {each.name: _packed(each, parameters) for each in plan.weights if len(each.shape) == 2}
    vectors = {each.name: _vector(each, parameters) for each in plan.weights if len(each.shape) == 1}
    return NativeExecutor(plan, NativeWeights(matrices=matrices, vectors=vectors), num_pages)


def native_from_checkpoint(
    path: Path, *, max_tokens: int = 128, weights: str = "f32", kv: KVType = "f32"
) -> NativeExecutor:
    """Load a directory or file with room for one request of `max_tokens`."""
    with open_checkpoint(path) as checkpoint:
        config = parse_config(checkpoint.hf_config)
        graph = build_graph(config)
        bound = bind_parameters(checkpoint, graph.param_shapes(), config)
        parameters = {name: parameter.float32() for name, parameter in bound.items()}
    spec = kv_spec(config, page_len=PAGE_LEN, element_bytes=4)
    limits = Limits(max_num_batched_tokens=max_tokens, max_logit_rows=max_tokens)
    plan = plan_of(graph, config, spec, weights=weights, kv=kv, limits=limits)
    return native_executor(plan, parameters, tuple(ceil_div(max_tokens, PAGE_LEN) for _ in spec.groups))


def quantized(values: np.ndarray, format_name: str) -> Codes:
    """Return the nearest record of a matrix."""
    record = Codes.empty(format_name, *values.shape)
    quantize(values, record, where="a test")
    return record


def _packed(weight: Weight, parameters: Mapping[str, Any]) -> Matrix:
    (part,) = weight.parts
    values = np.ascontiguousarray(parameters[part.parameter or ""], np.float32)
    panels = linear.Packer().pack(quantized(values, weight.format))
    aligned = aligned_zeros(len(panels))
    aligned[:] = panels
    return Matrix(weight.format, aligned, *weight.shape)


def _vector(weight: Weight, parameters: Mapping[str, np.ndarray]) -> np.ndarray:
    pieces = [
        np.zeros(part.rows, np.float32) if part.parameter is None else parameters[part.parameter]
        for part in weight.parts
    ]
    return np.ascontiguousarray(np.concatenate(pieces), np.float32)


def with_page_len(spec: KVSpec, page_len: int = PAGE_LEN) -> KVSpec:
    """The same groups in pages of another length."""
    return replace(spec, page_len=page_len)


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Run a module's tests on two threads; importing it is asking for it."""
    before = native.describe().threads
    native.set_num_threads(2)
    yield
    native.set_num_threads(before)
