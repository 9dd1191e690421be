"""Replaying a plan gives what its graph gives, to the bit: for every architecture and every kind of operand."""

from __future__ import annotations

import numpy as np
import pytest

from support import fused_graphs
from support.plan_executor import PlanExecutor, compile_golden
from trivium.base.errors import InternalError
from trivium.compile.formats import FORMATS
from trivium.compile.options import PassOptions
from trivium.compile.pipeline import run_passes
from trivium.kernels import gemm
from trivium.plan.replay import Replay
from trivium.runtime.arrays import NumpyLibrary

CASES = [(name, "f32") for name in fused_graphs.MODEL_NAMES]
CASES += [(name, form) for name in ("gemma3-pattern", "olmo2-mha-biased", "qwen2-tied") for form in ("bf16", "i8_g32")]


@pytest.mark.parametrize(("name", "form"), CASES)
def test_a_plan_replayed_is_its_graph_interpreted(name: str, form: str) -> None:
    plan, graph, config = compile_golden(name, form)
    params = fused_graphs.parameters(graph)
    formats = {param.name: FORMATS[form] for param in graph.params if len(param.type.shape) > 1}
    fused = run_passes(graph, PassOptions(formats, has_adapters=False))
    expected = fused_graphs.outcomes(fused, config, params)
    executor = PlanExecutor(plan, graph, config, params)
    logits = plan.programs["base"].outputs["logits"]
    for number, step in enumerate(fused_graphs.steps_for(plan.kv.spec, config)):
        found = executor.trace(step)[-1][logits]
        np.testing.assert_array_equal(found, expected[f"logits of step {number}"])


def test_an_operand_or_a_parameter_that_is_missing_is_an_error() -> None:
    plan, *_ = compile_golden(fused_graphs.MODEL_NAMES[0])
    replay = Replay(plan, NumpyLibrary(gemm), {})
    norm = next(place for place, each in enumerate(replay.instructions) if each.op == "add_norm")
    with pytest.raises(InternalError, match="add_norm: operand a was not given"):
        replay.run(norm, {}, memory=None)  # type: ignore[arg-type]
    with pytest.raises(InternalError, match=r"parameter .* is not bound"):
        replay.run(norm, {"a": np.zeros((1, 4), np.float32)}, memory=None)  # type: ignore[arg-type]
