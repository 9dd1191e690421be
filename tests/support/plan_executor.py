"""Runs a plan by its own meaning, in float32 on NumPy: a stand-in for the native executor, with room for faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from support import fused_graphs
from support.forms import form_named
from trivium.cache.spec import KVSpec
from trivium.compile.build import build_plan
from trivium.compile.emit import PlanFacts
from trivium.config.model import ModelConfig
from trivium.ir.graph import Graph
from trivium.kernels import gemm
from trivium.models import kv_spec
from trivium.plan.program import KVStorage, Limits, Plan
from trivium.plan.replay import Replay
from trivium.plan.verify import RoundedMemory
from trivium.runtime.arrays import NumpyLibrary
from trivium.runtime.bind import bind_graph
from trivium.runtime.inputs import StepMemory, graph_inputs
from trivium.runtime.kv_store import KVStore
from trivium.schedule.step import Step

NUM_PAGES = 32
Fault = Callable[[int, dict[str, np.ndarray]], None]
"""Changes what an instruction gave, by its place."""


@cache
def compile_golden(name: str, form: str = "f32", kv_dtype: Any = "f32") -> tuple[Plan, Graph, ModelConfig]:
    """Compile a tiny golden model with all matrices in one format."""
    config, graph = fused_graphs.golden_config(name), fused_graphs.golden_graph(name)
    spec = kv_spec(config, page_len=4, element_bytes={"f32": 4, "bf16": 2, "i8": 1}[kv_dtype])
    facts = PlanFacts(
        config=config,
        formats={param.name: form_named(form) for param in graph.params if len(param.type.shape) > 1},
        kv=KVStorage(spec=spec, dtype=kv_dtype),
        limits=Limits(max_num_batched_tokens=64, max_logit_rows=32),
    )
    return build_plan(graph, facts), graph, config


@dataclass
class PlanExecutor:
    """Executes steps instruction by instruction."""

    plan: Plan
    graph: Graph
    config: ModelConfig
    params: Mapping[str, np.ndarray]
    fault: Fault = lambda _place, _results: None
    timings: list[int] = field(default_factory=list)
    """Tokens of each step that was timed."""
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.library = NumpyLibrary(gemm)
        self.bound = bind_graph(self.graph, self.params, self.library).arrays
        self.replay = Replay(self.plan, self.library, self.bound)
        self.store = self.new_store()

    def new_store(self) -> KVStore:
        """Make an empty KV store."""
        spec: KVSpec = self.plan.kv.spec
        return KVStore(
            spec,
            (NUM_PAGES,) * len(spec.groups),
            num_kv_heads=self.config.num_kv_heads,
            head_width=self.config.head_width,
            library=self.library,
        )

    def memory(self, step: Step, store: KVStore) -> RoundedMemory:
        """Look at a store as the plan does."""
        return RoundedMemory(StepMemory(step, store, self.library), self.plan.kv)

    def inputs(self, step: Step) -> dict[str, Any]:
        """What a step brings."""
        return graph_inputs(step, self.library)

    def trace(self, step: Step) -> list[dict[str, np.ndarray]]:
        """Run a step and keep everything."""
        for group, source, target in step.copies.tolist():
            self.store.copy_page(group, source, target)
        self.steps.append(step)
        held = self.inputs(step)
        memory = self.memory(step, self.store)
        found = []
        for place, instruction in enumerate(self.replay.instructions):
            reads = {operand: held[name] for operand, name in instruction.reads.items() if name in held}
            results = {name: np.array(rows) for name, rows in self.replay.run(place, reads, memory).items()}
            self.fault(place, results)
            found.append({instruction.writes[name]: rows for name, rows in results.items()})
            held |= found[-1]
        return found

    def forward(self, step: Step) -> None:
        """Run a step."""
        self.trace(step)

    def timed(self, step: Step) -> list[float]:
        """Run a step; every instruction takes a microsecond for each that came before it, and some more each time."""
        self.trace(step)
        self.timings.append(step.num_tokens)
        return [1e-6 * place + 1e-9 * len(self.timings) for place in range(len(self.replay.instructions))]
