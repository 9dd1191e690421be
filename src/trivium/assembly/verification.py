"""Run a text through plan and reference, instruction by instruction, and judge the answer as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trivium.base.intmath import ceil_div
from trivium.compile.blame import GuiltyPass, find_guilty_pass
from trivium.compile.formats import format_named
from trivium.compile.options import PassOptions
from trivium.ir.interpret import Interpreter
from trivium.kernels import gemm
from trivium.plan.program import OPERAND_GROUP, WIDE_GROUP
from trivium.plan.replay import Replay
from trivium.plan.verify import Finding, RoundedMemory, first_wrong, relative_error, verify_step
from trivium.runtime.arrays import NumpyLibrary
from trivium.runtime.bind import bind_graph
from trivium.runtime.inputs import StepMemory, graph_inputs
from trivium.runtime.kv_store import KVStore
from trivium.runtime.rehearsal import text_steps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivium.config.model import ModelConfig
    from trivium.ir.graph import Graph
    from trivium.plan.program import Plan
    from trivium.plan.verify import Trace
    from trivium.schedule.step import Step

_MOST: Mapping[str, float] = {"q8_wide": 0.3, "q8": 0.25, "bf16": 0.05, "f32t": 1e-3}
"""By the coarsest operand of a plan: relative error of the logits that rounding explains."""


class Traceable(Protocol):
    """An executor that can stop after every instruction."""

    def trace(self, step: Step) -> Trace:
        """Run a step and return what every instruction wrote."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What came of it."""

    num_tokens: int
    num_steps: int
    findings: tuple[Finding, ...]
    """One per result of every instruction, step after step."""
    wrong: Finding | None
    """The first that rounding does not explain."""
    logit_error: float
    """Relative error of all logits against the model in float32."""
    most_logit_error: float
    """What rounding explains of it."""
    agreement: float
    """Share of positions at which both would choose the same token."""
    guilty: GuiltyPass | None = None
    """Where every instruction is right and the logits are not: the pass that changed them."""

    @property
    def is_right(self) -> bool:
        """Whether nothing was found."""
        return self.wrong is None and self.logit_error <= self.most_logit_error


class Reference:
    """The model's graph in float32, one KV store after the other."""

    def __init__(self, graph: Graph, parameters: Mapping[str, Any], config: ModelConfig, plan: Plan) -> None:
        self.graph = graph
        self.library = NumpyLibrary(gemm)
        self.params = bind_graph(graph, parameters, self.library).arrays
        self._config = config
        self._plan = plan

    def new_store(self, num_pages: int) -> KVStore:
        """Take an empty KV store."""
        spec = self._plan.kv.spec
        return KVStore(
            spec,
            (num_pages,) * len(spec.groups),
            num_kv_heads=self._config.num_kv_heads,
            head_width=self._config.head_width,
            library=self.library,
        )

    def logits(self, graph: Graph, steps: Sequence[Step], num_pages: int) -> NDArray[np.float32]:
        """Interpret a graph on the steps and return all logits, [tokens, V]."""
        interpreter, store = Interpreter(graph, self.library, self.params), self.new_store(num_pages)
        found = []
        for step in steps:
            memory = StepMemory(step, store, self.library)
            found.append(np.array(interpreter.run(graph_inputs(step, self.library), memory)["logits"]))
        return np.concatenate(found)


def verify_plan(
    plan: Plan, executor: Traceable, reference: Reference, tokens: Sequence[int], *, num_alone: int
) -> Verification:
    """Compare a plan with its model on a text.

    Args:
        plan: What the executor runs.
        executor: With pages for the text.
        reference: The model.
        tokens: The text.
        num_alone: How many of its last tokens are decoded one by one.
    """
    steps = text_steps(tokens, plan.kv.spec, num_alone=num_alone)
    num_pages = ceil_div(len(tokens), plan.kv.spec.page_len)
    replay = Replay(plan, reference.library, reference.params)
    store = reference.new_store(num_pages)
    output = plan.programs["base"].outputs["logits"]
    findings: list[Finding] = []
    logits = []
    for step in steps:
        trace = executor.trace(step)
        memory = RoundedMemory(StepMemory(step, store, reference.library), plan.kv)
        findings += verify_step(replay, trace, graph_inputs(step, reference.library), memory)
        logits.append(next(written[output] for written in reversed(trace) if output in written))
    found, expected = np.concatenate(logits), reference.logits(reference.graph, steps, num_pages)
    error, most = relative_error(found, expected), _most_error(plan)
    wrong, guilty = first_wrong(findings), None
    if wrong is None and not error <= most:
        guilty = find_guilty_pass(
            reference.graph, _pass_options(plan), lambda graph: reference.logits(graph, steps, num_pages)
        )
    return Verification(
        num_tokens=len(tokens),
        num_steps=len(steps),
        findings=tuple(findings),
        wrong=wrong,
        logit_error=error,
        most_logit_error=most,
        agreement=float(np.mean(found.argmax(axis=1) == expected.argmax(axis=1))),
        guilty=guilty,
    )


def _most_error(plan: Plan) -> float:
    kinds = {buffer.kind for buffer in plan.buffers}
    coarsest = next((kind for kind in _MOST if kind in kinds), "f32t")
    return max(_MOST[coarsest], _MOST["f32t" if plan.kv.dtype == "f32" else "bf16"])


def _pass_options(plan: Plan) -> PassOptions:
    is_wide = any(buffer.kind == "q8_wide" for buffer in plan.buffers)
    group = WIDE_GROUP if is_wide else OPERAND_GROUP
    formats = {
        part.parameter: format_named(weight.format).with_groups(group)
        for weight in plan.weights
        for part in weight.parts
        if len(weight.shape) > 1 and part.parameter is not None
    }
    return PassOptions(formats)
