"""Random low-rank adapters for a graph, and executors that can load them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from support.native import LIMITS, KVType, native_executor, plan_of
from support.tiny_steps import random_parameters
from trivium.cache.spec import KVSpec
from trivium.compile.formats import FORMATS
from trivium.compile.options import PassOptions
from trivium.compile.passes.add_adapters import add_adapters
from trivium.config.model import ModelConfig
from trivium.ir.graph import Graph
from trivium.ir.ops import OPS
from trivium.runtime.adapters import LowRank
from trivium.runtime.native import NativeExecutor
from trivium.runtime.reference import ReferenceExecutor
from trivium.schedule.step import Step


def multiplied(graph: Graph) -> list[str]:
    """Return every parameter that a product multiplies by, once."""
    gemms = [node for node in graph.nodes if node.op == "gemm"]
    found = [node.inputs[OPS["gemm"].input_names.index("weight")] for node in gemms]
    return list(dict.fromkeys(name for name in found if name is not None))


def drawn_adapter(graph: Graph, seed: int, rank: int, *, share: float = 1.0) -> dict[str, LowRank]:
    """Draw an adapter of about this rank for a share of a graph's products, at least one; logits stay as large."""
    rng = np.random.default_rng(seed)
    shapes, names = graph.param_shapes(), multiplied(graph)
    chosen = [name for name in names if rng.random() < share] or names[:1]
    found = {}
    for number, name in enumerate(chosen):
        num_cols, depth = shapes[name]
        its_rank = rank + number % 3
        a = rng.standard_normal((its_rank, depth)).astype(np.float32) / np.float32(depth**0.5)
        b = rng.standard_normal((num_cols, its_rank)).astype(np.float32)
        found[name] = LowRank(a, b, float(rng.uniform(0.1, 0.4)))
    return found


def merged_parameters(
    graph: Graph, parameters: dict[str, np.ndarray], adapter: dict[str, LowRank]
) -> dict[str, np.ndarray]:
    """Add an adapter's products to the weights themselves, which means the same where no weight is looked up in."""
    looked_up = {node.inputs[1] for node in graph.nodes if node.op == "embed"}
    assert not looked_up & set(adapter)
    deltas = {name: one.scale * (one.b.astype(np.float64) @ one.a.astype(np.float64)) for name, one in adapter.items()}
    return {name: (value + deltas.get(name, 0.0)).astype(np.float32) for name, value in parameters.items()}


def native_for(
    graph: Graph, config: ModelConfig, spec: KVSpec, num_pages: int, *, weights: str = "f32", kv: KVType = "f32"
) -> NativeExecutor:
    """Make a native executor with random weights."""
    plan = plan_of(graph, config, spec, weights=weights, kv=kv)
    return native_executor(plan, random_parameters(graph), (num_pages,) * len(spec.groups))


def reference_for(graph: Graph, config: ModelConfig, spec: KVSpec, num_pages: int) -> ReferenceExecutor:
    """Make a reference executor with the same weights."""
    formats = {param.name: FORMATS["f32"] for param in graph.params if len(param.type.shape) > 1}
    return ReferenceExecutor(
        graph,
        random_parameters(graph),
        config,
        spec,
        (num_pages,) * len(spec.groups),
        max_logit_rows=LIMITS.max_logit_rows,
        adapted=add_adapters(graph, PassOptions(formats, has_adapters=True)),
    )


def with_adapters(step: Step, slots: list[int]) -> Step:
    """The same step, each request with the adapter in a slot, or -1."""
    return replace(step, adapter_slot=np.array(slots, np.int32))
