"""Plans of all architectures: sound, readable, complete, and run by the plan alone they compute what the graph does."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest

from support.fused_graphs import (
    MODEL_NAMES,
    MODELS,
    PAGE_LEN,
    adapters_for,
    formats,
    golden_config,
    golden_graph,
    outcomes,
    parameters,
    steps_for,
)
from support.pass_cases import EMBED, graph_of
from support.plan_interpreter import PlanInterpreter
from trivium.base.errors import InternalError
from trivium.compile.build import build_plan
from trivium.compile.emit import PlanFacts, emit, list_program
from trivium.compile.formats import FORMATS, format_named
from trivium.compile.options import PassOptions
from trivium.compile.pipeline import PASSES, run_passes
from trivium.ir.graph import Graph
from trivium.kernels import gemm
from trivium.models import build_graph, kv_spec, parse_config
from trivium.plan.check import check_plan
from trivium.plan.program import Buffer, KVStorage, Limits, Plan, SumKind, WeightPart, row_bytes
from trivium.runtime.arrays import NumpyLibrary
from trivium.runtime.inputs import StepMemory, graph_inputs
from trivium.runtime.kv_store import KVStore

LIMITS = Limits(max_num_batched_tokens=32, max_logit_rows=8)


def facts_for(name: str, stored: dict[str, Any]) -> PlanFacts:
    config = golden_config(name)
    kv = KVStorage(spec=kv_spec(config, page_len=PAGE_LEN, element_bytes=4), dtype="f32")
    return PlanFacts(config=config, formats=stored, kv=kv, limits=LIMITS)


def plan_of(name: str, form: str = "i4m_g32") -> Plan:
    graph = golden_graph(name)
    return build_plan(graph, facts_for(name, formats(graph, form)))


def run_plan(
    plan: Plan, name: str, program: Any, params: dict[str, np.ndarray], adapters: Any
) -> dict[str, np.ndarray]:
    """Run the steps of `outcomes` by the plan."""
    config, library = golden_config(name), NumpyLibrary(gemm)
    spec = plan.kv.spec
    pages = (16,) * len(spec.groups)
    store = KVStore(spec, pages, num_kv_heads=config.num_kv_heads, head_width=config.head_width, library=library)
    interpreter = PlanInterpreter(plan, program, params)
    found = {}
    for number, step in enumerate(steps_for(spec, config)):
        outputs = interpreter.run(graph_inputs(step, library), StepMemory(step, store, library), adapters)
        found |= {f"{output} of step {number}": value for output, value in outputs.items()}
    return found


@pytest.mark.parametrize("name", MODEL_NAMES)
@pytest.mark.parametrize("program", ["base", "adapters"])
def test_run_by_the_plan_alone_a_program_gives_the_bits_of_its_graph(name: str, program: Any) -> None:
    graph, config = golden_graph(name), golden_config(name)
    stored = formats(graph, "i8_g32") | {
        matrix: FORMATS["bf16"] for matrix in formats(graph) if "down_proj" in matrix or "embed" in matrix
    }
    plan = build_plan(graph, facts_for(name, stored))
    params = parameters(graph)
    adapters = adapters_for(graph) if program == "adapters" else None
    fused = run_passes(graph, PassOptions(stored, has_adapters=program == "adapters"))
    expected = outcomes(fused, config, params, adapters)
    found = run_plan(plan, name, program, params, adapters)
    for output, value in found.items():
        np.testing.assert_array_equal(value, expected[output], err_msg=output)


@pytest.mark.parametrize("form", ["f32", "q3_k"])
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_plans_obey_their_own_laws_and_survive_json(name: str, form: str) -> None:
    plan = plan_of(name, form)
    check_plan(plan)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan


def test_equal_models_give_equal_plans() -> None:
    assert plan_of("gemma3-pattern") == plan_of("gemma3-pattern")


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_every_parameter_is_in_one_weight_and_whole(name: str) -> None:
    plan, shapes = plan_of(name), golden_graph(name).param_shapes()
    parts = [(part.parameter, part.rows) for weight in plan.weights for part in weight.parts if part.parameter]
    assert Counter(parameter for parameter, _ in parts) == Counter(list(shapes))
    assert all(rows == shapes[parameter][0] for parameter, rows in parts)
    for weight in plan.weights:
        assert weight.shape[0] == sum(part.rows for part in weight.parts)
        assert weight.format == ("f32" if len(weight.shape) == 1 else "i4m_g32")


def test_biases_of_merged_products_are_one_vector_with_zeros_where_there_is_none() -> None:
    graph = golden_graph("qwen2-tied")
    plan = plan_of("qwen2-tied")
    first = next(each for each in plan.programs["base"].instructions if each.op == "projection")
    bias = next(weight for weight in plan.weights if weight.name == first.weights["bias"])
    names = [f"layers.0.self_attn.{part}_proj.bias" for part in "qkv"]
    assert bias.parts == tuple(WeightPart(each, graph.param_shapes()[each][0]) for each in names)
    body = "%1: f32[T,8] = gemm(%x, gate)\n%2: f32[T,8] = gemm(%x, up, up_bias)\n"
    gated = graph_of(EMBED + body + "%3: f32[T,8] = gated(%1, %2; activation='silu')\noutput logits = %3\n")
    found = build_plan(gated, facts_for("llama-gqa", formats(gated)))
    (made,) = (each for each in found.programs["base"].instructions if each.op == "gated_projection")
    (vector,) = (weight for weight in found.weights if weight.name == made.weights["bias"])
    assert vector.parts == (WeightPart(None, 8), WeightPart("up_bias", 8))


def test_operands_are_stored_as_their_readers_want_them() -> None:
    graph = golden_graph("llama-gqa")
    stored = formats(graph, "i8_g32") | _q_k_v("i4m_g32", "i8_c", "i5_g32")
    plan = build_plan(graph, facts_for("llama-gqa", stored))
    buffers = {buffer.name: buffer for buffer in plan.buffers}
    first = next(each for each in plan.programs["base"].instructions if each.op == "projection")
    operand = buffers[first.reads["x"]]
    assert operand.sums == (SumKind(32, 0), SumKind(32, 128), SumKind(32, 16))
    assert first.attrs["sums"] == (0, 1, 2)
    assert (operand.width, operand.depth) == (32, 32)
    assert operand.num_bytes == 32 * (32 + 4 + 3 * 4)


def _q_k_v(query: str, key: str, value: str) -> dict[str, Any]:
    chosen = dict(zip("qkv", (query, key, value), strict=True))
    return {
        f"layers.{layer}.self_attn.{part}_proj.weight": format_named(form)
        for layer in range(2)
        for part, form in chosen.items()
    }


def test_an_operand_is_padded_to_whole_blocks() -> None:
    plan = plan_of("llama-gqa", "q4_k")
    depths = {(buffer.width, buffer.depth) for buffer in plan.buffers if buffer.kind == "q8"}
    assert depths == {(32, 256), (48, 256)}


def test_the_arena_holds_the_largest_step_and_serves_both_programs() -> None:
    plan = plan_of("llama-gqa")
    placed = [buffer for buffer in plan.buffers if buffer.offset is not None]
    for buffer in placed:
        rows = LIMITS.max_num_batched_tokens if buffer.rows == "T" else LIMITS.max_logit_rows
        assert buffer.num_bytes == rows * row_bytes(buffer.kind, buffer.depth, buffer.sums)
    assert max((buffer.offset or 0) + buffer.num_bytes for buffer in placed) <= plan.arena_bytes
    assert {plan.programs[name].outputs["logits"] for name in plan.programs} == {"logits", "adapters.logits"}


def test_more_layers_use_the_same_bytes_again() -> None:
    settings = json.loads((MODELS / "llama-gqa" / "config.json").read_text())
    plans = []
    for layers in (3, 9):
        config = parse_config({**settings, "num_hidden_layers": layers})
        graph = build_graph(config)
        kv = KVStorage(spec=kv_spec(config, page_len=PAGE_LEN, element_bytes=4), dtype="f32")
        plans.append(build_plan(graph, PlanFacts(config=config, formats=formats(graph), kv=kv, limits=LIMITS)))
    shallow, deep = plans
    assert deep.buffers == shallow.buffers
    assert deep.arena_bytes == shallow.arena_bytes
    # heads of 8 are rounded apart: nine instructions a layer
    assert len(deep.programs["base"].instructions) == len(shallow.programs["base"].instructions) + 6 * 9


def test_residuals_stay_where_they_are() -> None:
    for name in ("llama-gqa", "gemma2-softcap", "olmo2-gqa"):
        hidden = [(each.name, each.rows) for each in plan_of(name).buffers if each.name.startswith("hidden")]
        assert hidden == [("hidden", "T"), ("hidden_2", "R")]


def test_the_listing_has_a_line_per_instruction() -> None:
    plan = plan_of("llama-gqa")
    text = list_program(plan.programs["base"], plan.buffers)
    assert len(text.splitlines()) == len(plan.programs["base"].instructions)
    assert "hidden: f32[T,32] = projection_add(x=gated_operand, residual=hidden, " in text


def test_a_view_is_the_bytes_of_what_it_shows() -> None:
    body = "%1: f32[T,2,3] = reshape(%x; shape=('T', 2, 3))\n%2: f32[T,2,3] = rms_norm(%1, head_norm; eps=0.1)\n"
    body += "%3: f32[T,6] = reshape(%2; shape=('T', 6))\n%4: f32[T,3,2] = reshape(%3; shape=('T', 3, 2))\n"
    body += "%5, %6: f32[T,3,1], f32[T,3,1] = split(%4; sizes=(1, 1))\noutput logits = %5\noutput more = %3\n"
    plan = _small_plan(body)
    norm, split = plan.programs["base"].instructions[1:]
    assert norm.reads == {"x": "hidden"}
    assert (norm.attrs["count"], norm.attrs["width"]) == (2, 3)
    assert split.reads == {"x": "more"}
    assert (split.attrs["count"], split.attrs["sizes"]) == (3, (1, 1))
    assert plan.programs["base"].outputs == {"logits": "logits", "more": "more"}


def _small_plan(body: str) -> Plan:
    graph = graph_of(EMBED + body)
    plan = build_plan(graph, facts_for("llama-gqa", formats(graph)))
    check_plan(plan)
    return plan


def test_plain_ops_are_instructions() -> None:
    body = "%1: f32[T,6] = mul(%x, %x)\n%2: f32[T,6] = scale(%1; factor=2.0)\n%3: f32[T,6] = softcap(%2; cap=3.0)\n"
    body += "%4: f32[T,6] = gated(%3, %x; activation='silu')\n%5: f32[T,6] = add(%4, %x)\noutput logits = %5\n"
    found = _small_plan(body).programs["base"].instructions
    assert [each.op for each in found] == ["embed", "mul", "scale", "softcap", "gated", "add"]
    assert found[2].attrs == {"factor": 2.0}
    assert found[4].reads == {"gate": "softcap", "up": "hidden"}


@pytest.mark.parametrize(
    ("body", "stored", "problem"),
    [
        (EMBED + "output logits = %x\noutput b = embeds\n", {}, "output b is embeds, which no instruction writes"),
        (
            EMBED + "%n: f32[T,6] = mul(%x, %x)\n"
            "%o: q8[T,6] = add_norm(%n; eps=None, kind='q8', gives=('operand',))\n"
            "%y: f32[T,6] = projection_add(%o, w, %x)\n%z: f32[T,6] = add(%x, %y)\noutput logits = %z\n",
            {"w": "i8_g32"},
            "adds to a residual that is needed afterwards",
        ),
        (
            EMBED + "%o: q8[T,6] = add_norm(%x; eps=None, kind='q8', gives=('operand',))\n"
            "%y: f32[T,6] = projection_add(%o, w, embeds)\noutput logits = %y\n",
            {"w": "i8_g32"},
            "adds to a residual that is needed afterwards, or an input",
        ),
        (
            EMBED + "%o: q8[T,6] = add_norm(%x; eps=None, kind='q8', gives=('operand',))\n"
            "%y: f32[T,6] = projection(%o, w; scale=1.0, softcap=None)\noutput logits = %y\n",
            {"w": "bf16"},
            r"w of format bf16 cannot multiply %o: q8\[T,6\]",
        ),
        (
            EMBED + "%o: q8[T,6] = add_norm(%x; eps=None, kind='q8', gives=('operand',))\n"
            "%y: f32[T,9] = projection(%o, w, k; scale=1.0, softcap=None)\noutput logits = %y\n",
            {"w": "i8_g32", "k": "q4_k"},
            "readers of %o pad it differently",
        ),
    ],
)
def test_graphs_that_cannot_be_laid_out_are_refused(body: str, stored: dict[str, str], problem: str) -> None:
    graph = graph_of(body)
    every = {**formats(graph), **{name: FORMATS[form] for name, form in stored.items()}}
    with pytest.raises(InternalError, match=problem):
        emit({"base": graph}, facts_for("llama-gqa", every))


def test_too_many_sums_are_refused() -> None:
    body = "%o: q8[T,6] = add_norm(%x; eps=None, kind='q8', gives=('operand',))\n"
    stored = {"w": "i8_g32", "w2": "i4_g32", "k": "i4m_g32", "v": "i5_g32"}
    for idx, name in enumerate(stored):
        width = 6 if name.startswith("w") else 3
        body += f"%p{idx}: f32[T,{width}] = projection(%o, {name}; scale=1.0, softcap=None)\noutput o{idx} = %p{idx}\n"
    graph = graph_of(EMBED + body)
    every = {**formats(graph), **{name: FORMATS[form] for name, form in stored.items()}}
    plan = emit({"base": graph}, facts_for("llama-gqa", every))
    (operand,) = (buffer for buffer in plan.buffers if buffer.kind == "q8")
    assert len(operand.sums) == 4


def test_the_listener_hears_both_programs() -> None:
    graph, heard = golden_graph("llama-gqa"), []

    def listen(program: str, stage: str, after: Graph) -> None:
        heard.append((program, stage, len(after.nodes)))

    plan = build_plan(graph, facts_for("llama-gqa", formats(graph)), on_pass=listen)
    assert [program for program, _, _ in heard] == ["base"] * (len(PASSES) + 1) + ["adapters"] * (len(PASSES) + 1)
    assert heard[len(PASSES)][2] == len(plan.programs["base"].instructions)


def test_rows_take_the_bytes_that_the_kernels_expect() -> None:
    assert row_bytes("f32", 5) == 20
    assert row_bytes("f32t", 64) == 256
    assert row_bytes("bf16", 64) == 128
    assert row_bytes("q8", 64) == 64 + 2 * 4
    assert row_bytes("q8_wide", 128, (SumKind(64, 0),)) == 128 + 2 * 4 + 2 * 4
    assert row_bytes("q8", 64, (SumKind(32, 0), SumKind(16, 4))) == 64 + 2 * 4 + 2 * 4 + 4 * 4


def test_no_two_buffers_have_one_name() -> None:
    plan = plan_of("gemma3-pattern")
    names: list[str] = [buffer.name for buffer in plan.buffers if isinstance(buffer, Buffer)]
    assert len(set(names)) == len(names)
