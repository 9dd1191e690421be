"""Verifying: a right plan passes, a planted fault is named where it is made, and rounding is no fault."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from support import fused_graphs
from support.plan_executor import Fault, PlanExecutor, compile_golden
from trivium.base.errors import InternalError
from trivium.ir.rounding import GROUPS
from trivium.plan.verify import Finding, RoundedMemory, first_wrong, relative_error, verify_step

Results = dict[str, np.ndarray]


def verified(name: str, form: str, fault: Fault, *, kv_dtype: str = "f32") -> list[Finding]:
    """Run three steps with a fault, and judge them with a reference that has none."""
    plan, graph, config = compile_golden(name, form, kv_dtype)
    executor = PlanExecutor(plan, graph, config, fused_graphs.parameters(graph), fault)
    reference = executor.new_store()
    findings: list[Finding] = []
    for step in fused_graphs.steps_for(plan.kv.spec, config):
        trace = executor.trace(step)
        memory = executor.memory(step, reference)
        findings += verify_step(executor.replay, trace, executor.inputs(step), memory)
    return findings


def no_fault(_place: int, _results: Results) -> None:
    """Change nothing."""


@pytest.mark.parametrize("form", ["f32", "bf16", "i8_g32"])
@pytest.mark.parametrize("kv_dtype", ["f32", "bf16", "i8"])
def test_a_right_plan_passes(form: str, kv_dtype: str) -> None:
    findings = verified("gemma3-pattern", form, no_fault, kv_dtype=kv_dtype)
    assert first_wrong(findings) is None
    assert max(finding.excess for finding in findings) == 0.0


def test_every_result_of_every_step_is_judged() -> None:
    findings = verified("qwen2-tied", "i8_g32", no_fault)
    plan, *_ = compile_golden("qwen2-tied", "i8_g32")
    results = [(place, name) for place, each in enumerate(plan.programs["base"].instructions) for name in each.writes]
    assert [(finding.place, finding.result) for finding in findings] == results * 3


def one_element(results: Results, name: str) -> None:
    rows = results[name]
    rows[-1, 1] += 0.1 * np.abs(rows[-1]).max() + 1e-3


def one_row_of_another(results: Results, name: str) -> None:
    results[name][0] = results[name][-1]


def a_little_scaled(results: Results, name: str) -> None:
    results[name] *= np.float32(1.02)


def not_a_number(results: Results, name: str) -> None:
    results[name][0, 0] = np.nan


FAULTS: list[Callable[[Results, str], None]] = [one_element, one_row_of_another, a_little_scaled, not_a_number]


def places(op: str, form: str) -> list[int]:
    plan, *_ = compile_golden("qwen2-tied", form)
    return [place for place, each in enumerate(plan.programs["base"].instructions) if each.op == op]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("op", ["embed", "rope_table", "add_norm", "projection", "projection_add", "gated_projection"])
def test_the_first_instruction_with_a_fault_is_named_and_later_ones_are_not_blamed(
    op: str, fault: Callable[[Results, str], None]
) -> None:
    form = "f32" if fault is a_little_scaled or op == "rope_table" else "i8_g32"
    target = places(op, form)[-1]

    def planted(place: int, results: Results) -> None:
        if place == target:
            fault(results, next(iter(results)))

    findings = verified("qwen2-tied", form, planted)
    wrong = first_wrong(findings)
    assert wrong is not None
    assert (wrong.place, wrong.op) == (target, op)
    assert {finding.place for finding in findings if finding.is_wrong} == {target}
    assert wrong.buffer in str(wrong)


def test_a_result_of_the_wrong_width_is_wrong_and_what_follows_is_still_judged() -> None:
    plan, graph, config = compile_golden("qwen2-tied", "i8_g32")
    executor = PlanExecutor(plan, graph, config, fused_graphs.parameters(graph))
    step = fused_graphs.steps_for(plan.kv.spec, config)[0]
    trace, target = executor.trace(step), 7
    buffer = next(iter(trace[target]))
    trace[target][buffer] = trace[target][buffer][:, :-1]
    memory = executor.memory(step, executor.new_store())
    findings = verify_step(executor.replay, trace, executor.inputs(step), memory)
    assert {finding.place for finding in findings if finding.is_wrong} == {target}


@pytest.mark.parametrize("fault", [one_element, one_row_of_another, not_a_number], ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("kv_dtype", ["f32", "bf16"])
def test_a_fault_of_attention_is_named(kv_dtype: str, fault: Callable[[Results, str], None]) -> None:
    target = places("attend", "f32")[1]

    def planted(place: int, results: Results) -> None:
        if place == target:
            fault(results, next(iter(results)))

    wrong = first_wrong(verified("qwen2-tied", "f32", planted, kv_dtype=kv_dtype))
    assert wrong is not None
    assert (wrong.place, wrong.op, wrong.layer) == (target, "attend", 1)
    assert str(wrong).startswith(f"instruction {target}, attend of layer 1: ")


@pytest.mark.parametrize("form", ["bf16", "i8_g32", "i8_g64 wide"])
def test_one_step_of_rounding_is_no_fault_and_two_are(form: str) -> None:
    """Kernels may round the other way where a float32 sum differs in its last bit."""
    plan, *_ = compile_golden("qwen2-tied", form)
    target = places("gated_projection", form)[0]
    kind = next(each.kind for each in plan.buffers if each.name.startswith("gated_operand"))

    def moved(by: float) -> list[Finding]:
        def planted(place: int, results: Results) -> None:
            if place == target:
                rows = results["operand"]
                step = np.abs(rows[:, 0]) * 2.0**-7
                if kind in GROUPS:
                    step = np.abs(rows[:, : GROUPS[kind]]).max(axis=1) / 127
                rows[:, 0] += np.float32(by) * step.astype(np.float32)

        return verified("qwen2-tied", form, planted)

    assert first_wrong(moved(1.0)) is None
    wrong = first_wrong(moved(2.2))
    assert wrong is not None
    assert wrong.place == target


def test_keys_are_rounded_as_the_plan_keeps_them() -> None:
    class Kept:
        def write(self, _layer: int, k: np.ndarray, v: np.ndarray) -> None:
            self.k, self.v = k, v

    plan, *_ = compile_golden("qwen2-tied")
    k = np.random.default_rng(0).standard_normal((3, 2, 8)).astype(np.float32)
    for dtype, step in (("f32", 0.0), ("bf16", 2.0**-8), ("i8", 0.5 / 127)):
        kept = Kept()
        kv = type(plan.kv)(spec=plan.kv.spec, dtype=dtype)  # type: ignore[arg-type]
        RoundedMemory(kept, kv).write(0, k, np.zeros_like(k))  # type: ignore[arg-type]
        largest = np.abs(k) if dtype == "bf16" else np.abs(k).max(axis=-1, keepdims=True)
        assert (np.abs(kept.k - k) <= step * largest * 1.001).all()
        assert np.array_equal(kept.k, k) == (dtype == "f32")
        assert not kept.v.any()


def test_a_trace_of_something_else_is_refused() -> None:
    plan, graph, config = compile_golden("qwen2-tied")
    executor = PlanExecutor(plan, graph, config, fused_graphs.parameters(graph))
    step = fused_graphs.steps_for(plan.kv.spec, config)[0]
    trace = executor.trace(step)
    memory = executor.memory(step, executor.new_store())
    with pytest.raises(InternalError, match=f"the trace has {len(trace) - 1} instructions, the plan {len(trace)}"):
        verify_step(executor.replay, trace[:-1], executor.inputs(step), memory)
    with pytest.raises(InternalError, match=r"the trace lacks .*, which instruction 0 writes"):
        verify_step(executor.replay, [{}, *trace[1:]], executor.inputs(step), memory)


def test_the_relative_error_of_nothing_is_the_error() -> None:
    zeros = np.zeros((2, 2), np.float32)
    assert relative_error(zeros, zeros) == 0.0
    assert relative_error(zeros + 3, zeros) == 3.0
    assert relative_error(zeros + 3, zeros + 2) == 0.5
