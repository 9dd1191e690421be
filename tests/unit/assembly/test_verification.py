"""Verifying a whole model: what is right passes, and what is wrong is laid at the door of its maker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support import fused_graphs
from support.plan_executor import Fault, PlanExecutor, compile_golden
from trivium.assembly.verification import Reference, Verification, verify_plan
from trivium.compile import pipeline
from trivium.compile.blame import find_guilty_pass
from trivium.compile.formats import FORMATS
from trivium.compile.options import PassOptions
from trivium.compile.pipeline import Pass
from trivium.ir.graph import Graph
from trivium.plan.program import Plan

TOKENS = list(range(2, 21))


def verified(form: str, fault: Fault | None = None, change: Callable[[Plan], Plan] = lambda plan: plan) -> Verification:
    plan, graph, config = compile_golden("qwen2-tied", form)
    params = fused_graphs.parameters(graph)
    executor = PlanExecutor(change(plan), graph, config, params, *([fault] if fault else []))
    reference = Reference(graph, params, config, plan)
    return verify_plan(executor.plan, executor, reference, TOKENS, num_alone=2)


@pytest.mark.parametrize("form", ["f32", "bf16", "i8_g32"])
def test_a_right_plan_is_right(form: str) -> None:
    outcome = verified(form)
    assert outcome.is_right
    assert (outcome.num_tokens, outcome.num_steps) == (len(TOKENS), 3)
    assert outcome.logit_error <= {"f32": 1e-6, "bf16": 0.05, "i8_g32": 0.25}[form]
    assert (outcome.logit_error == 0) == (form == "f32")


def test_an_instruction_with_a_fault_is_named() -> None:
    def planted(place: int, results: dict[str, np.ndarray]) -> None:
        if place == 9:
            next(iter(results.values()))[:] *= 3

    outcome = verified("i8_g32", planted)
    assert not outcome.is_right
    assert outcome.wrong is not None
    assert outcome.wrong.place == 9
    assert outcome.guilty is None


def test_a_plan_that_says_something_else_than_the_model_is_wrong_though_every_instruction_is_right() -> None:
    def change(plan: Plan) -> Plan:
        program = plan.programs["base"]
        changed = [
            replace(each, attrs={**each.attrs, "scale": 3.0}) if each.op == "attend" else each
            for each in program.instructions
        ]
        return replace(plan, programs={**plan.programs, "base": replace(program, instructions=tuple(changed))})

    outcome = verified("f32", change=change)
    assert outcome.wrong is None
    assert not outcome.is_right
    assert outcome.logit_error > outcome.most_logit_error
    assert outcome.guilty is None  # the passes are right; emission, or somebody's hand, was not


def with_bad_pass(place: int) -> tuple[Pass, ...]:
    def flatten_norms(graph: Graph, _: PassOptions) -> Graph:
        nodes = [
            replace(node, attributes={**node.attributes, "eps": 0.5}) if node.attributes.get("eps") else node
            for node in graph.nodes
        ]
        return replace(graph, nodes=tuple(nodes))

    return (*pipeline.PASSES[:place], Pass("a bad one", flatten_norms), *pipeline.PASSES[place:])


@pytest.mark.parametrize("place", [0, 3, len(pipeline.PASSES)])
def test_the_pass_that_changes_what_a_graph_gives_is_named(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    plan, graph, config = compile_golden("qwen2-tied", "i8_g32")
    formats = {param.name: FORMATS["i8_g32"] for param in graph.params if len(param.type.shape) > 1}
    reference = Reference(graph, fused_graphs.parameters(graph), config, plan)
    steps = fused_graphs.steps_for(plan.kv.spec, config)[:1]

    def outputs_of(stage: Graph) -> Any:
        return reference.logits(stage, steps, 16)

    assert find_guilty_pass(graph, PassOptions(formats), outputs_of) is None
    monkeypatch.setattr(pipeline, "PASSES", with_bad_pass(place))
    guilty = find_guilty_pass(graph, PassOptions(formats), outputs_of)
    assert guilty is not None
    assert guilty.name == "a bad one"
    assert guilty.error > 1e-3
