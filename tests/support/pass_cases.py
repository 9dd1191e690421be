"""Before and after of one pass, as graph text: the same graph up to names, and the same numbers to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from support.forms import form_named
from support.fused_graphs import RandomAdapters, adapters_for
from trivium.compile.options import PassOptions
from trivium.ir.attention import KVRead, Sight
from trivium.ir.graph import Graph, Value
from trivium.ir.interpret import Interpreter
from trivium.ir.ops import OPS
from trivium.ir.parser import parse
from trivium.ir.printer import to_text
from trivium.ir.verify import verify
from trivium.kernels import gemm
from trivium.runtime.arrays import NumpyLibrary
from trivium.runtime.bind import bind_graph

HEAD = """\
graph G
input token_ids: i32[T]
input positions: i32[T]
input reach: i32[T]
input logit_rows: i32[R]
input embeds: f32[T,6]
param table: f32[9,6]
param norm: f32[6]
param norm2: f32[6]
param head_norm: f32[3]
param w: f32[6,6]
param w2: f32[6,6]
param k: f32[3,6]
param v: f32[3,6]
param bias: f32[6]
param k_bias: f32[3]
param gate: f32[8,6]
param up: f32[8,6]
param down: f32[6,8]
param up_bias: f32[8]
"""
"""What every case declares; x is where they begin."""

EMBED = "%x: f32[T,6] = embed(token_ids, table, embeds; scale=1.0)\n"
ROPE = "%r: f32[T,2,1] = rope_table(positions, reach; rope=rope(rotary_dim=2, original_max_positions=64))\n"
TOKENS, ROWS = 4, 2

Pass = Callable[[Graph, PassOptions], Graph]


def options_for(graph: Graph, *, has_adapters: bool = False, **formats: str) -> PassOptions:
    """Store every matrix as float32, save those that are named."""
    stored = {param.name: "f32" for param in graph.params if len(param.type.shape) > 1} | formats
    return PassOptions({name: form_named(form) for name, form in stored.items()}, has_adapters)


def canonical(graph: Graph) -> str:
    """Write the graph with values numbered in the order in which they are made."""
    names: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        inputs = tuple(None if name is None else names.get(name, name) for name in node.inputs)
        for value in node.outputs:
            names[value.name] = f"%{len(names)}"
        outputs = tuple(Value(names[value.name], value.type) for value in node.outputs)
        nodes.append(replace(node, inputs=inputs, outputs=outputs))
    outputs_by_name = {name: names.get(value, value) for name, value in graph.outputs.items()}
    return to_text(replace(graph, nodes=tuple(nodes), outputs=outputs_by_name))


def graph_of(body: str) -> Graph:
    """Parse and verify the common declarations and a body."""
    graph = parse(HEAD + body)
    verify(graph)
    return graph


def assert_becomes(
    run: Pass, before: str, expected: str, *, has_adapters: bool = False, is_exact: bool = True, **formats: str
) -> None:
    """Fail unless the pass turns one body into the other, and both compute the same."""
    graph, wanted = graph_of(before), graph_of(expected)
    found = run(graph, options_for(graph, has_adapters=has_adapters, **formats))
    verify(found)
    assert canonical(found) == canonical(wanted)
    if is_exact:
        assert_same_values(graph, found)


def assert_stays(run: Pass, body: str, **formats: str) -> None:
    """Fail unless the pass leaves a body alone."""
    assert_becomes(run, body, body, is_exact=False, **formats)


def assert_same_values(one: Graph, other: Graph) -> None:
    """Fail unless both graphs give the same bits, outputs and KV."""
    first, second = values_of(one), values_of(other)
    assert list(first) == list(second)
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value, err_msg=name)


class OneRequest:
    """KV memory of one request that begins here, seen whole."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def write(self, layer: int, k: Any, v: Any) -> None:
        """Keep K and V."""
        self.held[layer] = (k, v)

    def contents(self) -> dict[str, np.ndarray]:
        """Give what was written, by layer."""
        return {f"{name} of {layer}": np.array(part) for layer, kept in sorted(self.held.items())
                for name, part in zip("kv", kept, strict=True)}  # fmt: skip

    def reads(self, layer: int, window: int | None) -> Iterator[KVRead]:
        """Give them back in one read."""
        k, v = self.held[layer]
        sight = Sight(np.arange(len(k), dtype=np.int32)[None], np.zeros(1, np.int32), window)
        yield KVRead(slice(None), sight, k.transpose(1, 0, 2)[:, None], v.transpose(1, 0, 2)[:, None])


def drawn_parameters(graph: Graph, seed: int = 2) -> dict[str, np.ndarray]:
    """Draw what a graph declares; equal declarations, equal numbers."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in graph.param_shapes().items()}


def step_inputs() -> dict[str, Any]:
    """Give a step of one request: four tokens, one of them embedded by the caller, two rows wanted."""
    embeds = np.full((TOKENS, 6), np.nan, np.float32)
    embeds[1] = 0.5
    return {
        "token_ids": np.array([3, 1, 8, 0]),
        "positions": np.arange(TOKENS, dtype=np.int32),
        "reach": np.full(TOKENS, 64, np.int32),
        "logit_rows": np.array([3, 1]),
        "embeds": embeds,
    }


def drawn_adapters(graph: Graph) -> RandomAdapters | None:
    """Draw adapters where a graph asks for them."""
    return adapters_for(graph) if any(node.op == "adapter_delta" for node in graph.nodes) else None


def values_of(graph: Graph) -> Mapping[str, np.ndarray]:
    """Run a graph on drawn weights, and on a step of one request."""
    library, memory = NumpyLibrary(gemm), OneRequest()
    used = {name for node in graph.nodes for name in node.inputs}
    kept = replace(graph, params=tuple(param for param in graph.params if param.name in used))
    bound = bind_graph(kept, drawn_parameters(graph), library)
    found = dict(Interpreter(kept, library, bound.arrays).run(step_inputs(), memory, adapters=drawn_adapters(graph)))
    return found | memory.contents()


def uses_of(graph: Graph, op: str) -> int:
    """Count the nodes of an op."""
    assert op in OPS
    return sum(node.op == op for node in graph.nodes)
