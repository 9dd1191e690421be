"""Run graphs before and after passes on the same steps, and look for a bit that differs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from support.tiny_steps import Story, random_parameters
from trivium.cache.spec import KVSpec
from trivium.compile.formats import FORMATS, WeightFormat
from trivium.config.model import ModelConfig
from trivium.ir.graph import Graph
from trivium.ir.interpret import Interpreter
from trivium.ir.ops import OPS
from trivium.kernels import gemm
from trivium.models import build_graph, kv_spec, parse_config
from trivium.runtime.arrays import NumpyLibrary
from trivium.runtime.bind import bind_graph
from trivium.runtime.inputs import StepMemory, graph_inputs
from trivium.runtime.kv_store import KVStore

MODELS = Path(__file__).parent.parent / "golden" / "models"
_ROPES = ("dynamic", "llama3", "yarn", "mscale", "llama-linear", "longrope")
"""Models that differ from their kin in the numbers of a rope table only."""

MODEL_NAMES = tuple(
    name
    for name in sorted(path.name for path in MODELS.iterdir() if (path / "config.json").exists())
    if not name.endswith(_ROPES)
)
"""Tiny models of the golden tests: every architecture, and everything that one can do differently in its graph."""

PAGE_LEN = 4


def golden_config(name: str) -> ModelConfig:
    """Read the configuration of a tiny model."""
    return parse_config(json.loads((MODELS / name / "config.json").read_text()))


def golden_graph(name: str) -> Graph:
    """Build the graph of a tiny model."""
    return build_graph(golden_config(name))


def formats(graph: Graph, name: str = "f32") -> dict[str, WeightFormat]:
    """Store every matrix in one format."""
    return {param.name: FORMATS[name] for param in graph.params if len(param.type.shape) > 1}


def parameters(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Draw parameters for a graph."""
    return random_parameters(graph, seed)


class RandomAdapters:
    """Deltas drawn from the parameter's name and the row's numbers, some rows without an adapter."""

    def __init__(self, widths: Mapping[str, int], *, size: float = 0.3) -> None:
        self._widths = widths
        self._size = size
        self.asked: list[str] = []

    def delta(self, parameter: str, x: np.ndarray, rows: str) -> np.ndarray:
        self.asked.append(parameter)
        rng = np.random.default_rng(sum(parameter.encode()))
        weight = rng.standard_normal((x.shape[1], self._widths[parameter])).astype(np.float32)
        delta = gemm.gemm(x, gemm.pack(np.ascontiguousarray(weight.T))) * np.float32(self._size)
        delta[np.abs(x[:, 0]) < 0.2] = 0.0
        return delta


def adapters_for(graph: Graph, *, size: float = 0.3) -> RandomAdapters:
    """Draw adapters for every product of a graph."""
    widths = {}
    shapes = graph.param_shapes()
    for node in graph.nodes:
        for name, value in zip(OPS[node.op].input_names, node.inputs, strict=True):
            if name in OPS[node.op].matrices and value is not None:
                widths[value] = shapes[value][0]
    return RandomAdapters(widths, size=size)


def outcomes(
    graph: Graph, config: ModelConfig, params: Mapping[str, np.ndarray], adapters: Any = None
) -> dict[str, np.ndarray]:
    """Run three steps of two requests: a prefill and a chunk, decodes beside a chunk, decodes; some rows wanted.

    Returns:
        Logits of each step, and every page of the KV store at the end.
    """
    spec = kv_spec(config, page_len=PAGE_LEN, element_bytes=4)
    library, num_pages = NumpyLibrary(gemm), 16
    bound = bind_graph(graph, params, library)
    interpreter = Interpreter(graph, library, bound.arrays)
    pages = (num_pages,) * len(spec.groups)
    store = KVStore(spec, pages, num_kv_heads=config.num_kv_heads, head_width=config.head_width, library=library)
    results = {}
    for number, step in enumerate(steps_for(spec, config, num_pages)):
        found = interpreter.run(graph_inputs(step, library), StepMemory(step, store, library), adapters=adapters)
        results |= {f"{name} of step {number}": np.array(value) for name, value in found.items()}
    for group, count in enumerate(pages):
        contents = [np.frombuffer(store.export_page(group, page), "<f4") for page in range(count)]
        results[f"KV of group {group}"] = np.stack(contents)
    return results


def steps_for(spec: KVSpec, config: ModelConfig, num_pages: int = 16) -> list[Any]:
    """Build the three steps that `outcomes` runs."""
    story = Story(spec, [list(range(num_pages)) for _ in spec.groups])
    rng = np.random.default_rng(5)
    long, short = (story.start(rng.integers(0, config.vocab_size, size).tolist(), 40) for size in (23, 9))
    return [
        story.step([(long, 14), (short, 5)], rows="last"),
        story.step([(short, 1), (long, 7)]),
        story.step([(long, 1), (short, 1)]),
    ]


def assert_same(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], where: str) -> None:
    """Fail unless every result has the same bits."""
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=f"{where}: {name}")


def largest_difference(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """Return the largest difference of any result, in standard deviations of that result."""
    worst = 0.0
    for name, value in expected.items():
        spread = float(value.std()) or 1.0
        worst = max(worst, float(np.abs(found[name].astype(np.float64) - value).max()) / spread)
    return worst
