"""All passes on all architectures: legal after each, the same numbers, and nothing left without an instruction."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from support.fused_graphs import (
    MODEL_NAMES,
    adapters_for,
    assert_same,
    formats,
    golden_config,
    golden_graph,
    largest_difference,
    outcomes,
    parameters,
)
from trivium.base.errors import InternalError
from trivium.compile.formats import FORMATS
from trivium.compile.options import PassOptions
from trivium.compile.pipeline import BEFORE, PASSES, check_instructions, run_passes
from trivium.ir.graph import Graph
from trivium.ir.ops import OPS
from trivium.ir.parser import parse
from trivium.ir.printer import to_text


def stages(graph: Graph, options: PassOptions) -> list[tuple[str, Graph]]:
    found: list[tuple[str, Graph]] = []
    run_passes(graph, options, on_pass=lambda name, after: found.append((name, after)))
    return found


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_every_pass_keeps_every_bit_of_logits_and_kv(name: str) -> None:
    graph, config = golden_graph(name), golden_config(name)
    params = parameters(graph)
    expected = outcomes(graph, config, params)
    before = graph
    for stage, after in stages(graph, PassOptions(formats(graph))):
        if after != before:
            assert_same(outcomes(after, config, params), expected, f"after '{stage}'")
        before = after


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_with_adapters_every_pass_keeps_every_bit_too(name: str) -> None:
    graph, config = golden_graph(name), golden_config(name)
    params, adapters = parameters(graph), adapters_for(graph)
    found = dict(stages(graph, PassOptions(formats(graph), has_adapters=True)))
    expected = outcomes(found["add adapters"], config, params, adapters)
    for stage in ("merge projections", "fuse residual add", "fuse add and norm", PASSES[-1].name):
        assert_same(outcomes(found[stage], config, params, adapters), expected, f"after '{stage}'")
    assert largest_difference(expected, outcomes(graph, config, params)) > 0.01


@pytest.mark.parametrize("name", ["llama-mqa-biased", "gemma2-softcap", "olmo2-gqa", "qwen3-gqa"])
def test_adapters_that_add_nothing_change_nothing(name: str) -> None:
    graph, config = golden_graph(name), golden_config(name)
    params, adapters = parameters(graph), adapters_for(graph, size=0.0)
    fused = run_passes(graph, PassOptions(formats(graph), has_adapters=True))
    found, expected = outcomes(fused, config, params, adapters), outcomes(graph, config, params)
    assert_same(found, expected, "zero deltas")
    matrices = [param for param in formats(graph) if param != "embed_tokens.weight" or _is_tied(graph)]
    per_step = Counter(adapters.asked)
    assert sorted(per_step) == sorted(matrices)
    assert set(per_step.values()) == {3}


def _is_tied(graph: Graph) -> bool:
    return "lm_head.weight" not in graph.param_shapes()


@pytest.mark.parametrize("name", MODEL_NAMES)
@pytest.mark.parametrize("has_adapters", [False, True])
def test_what_is_left_are_fused_ops_only(name: str, has_adapters: bool) -> None:
    graph = golden_graph(name)
    fused = run_passes(graph, PassOptions(formats(graph, "i8_g32"), has_adapters=has_adapters))
    found = Counter(node.op for node in fused.nodes)
    layers = golden_config(name).num_layers
    allowed = {"embed", "rope_table", "add_norm", "projection", "projection_add", "gated_projection"}
    allowed |= {"rope_kv", "attend"} | ({"adapter_delta"} if has_adapters else set())
    assert set(found) <= allowed
    assert found["rope_kv"] == found["attend"] == found["gated_projection"] == layers
    assert found["projection"] + found["projection_add"] == 3 * layers + 1
    # One norm before each half and the last (or behind each half, and one to round the first operand); in the last
    # layer, the wanted rows of attention are picked and rounded, and those of the residual picked.
    # Heads that are not whole groups of an operand are rounded apart in the other layers too.
    rounded_apart = layers - 1 if golden_config(name).head_width % 32 else 0
    assert found["add_norm"] == 2 * layers + 3 + rounded_apart
    wanted = [node for node in fused.nodes if node.outputs[0].type.shape[0] == "R"]
    products = [node for node in wanted if OPS[node.op].matrices]
    assert len(products) == 4
    assert parse(to_text(fused)) == fused


@pytest.mark.parametrize(("form", "bound"), [("bf16", 0.1), ("i8_g32", 0.25)])
@pytest.mark.parametrize("name", ["llama-gqa", "gemma2-softcap", "olmo2-gqa", "phi3-longrope-partial"])
def test_rounded_operands_move_the_numbers_a_little(name: str, form: str, bound: float) -> None:
    graph, config = golden_graph(name), golden_config(name)
    params = parameters(graph)
    exact = outcomes(graph, config, params)
    rounded = outcomes(run_passes(graph, PassOptions(formats(graph, form))), config, params)
    assert 0 < largest_difference(rounded, exact) < bound


def test_rounding_is_where_the_product_reads_it() -> None:
    """The graph with operands is the graph without, whose products' left operands are rounded before they enter."""
    graph, config = golden_graph("llama-gqa"), golden_config("llama-gqa")
    narrow = {name: form for name, form in formats(graph, "i8_g32").items() if "down_proj" not in name}
    options = PassOptions({**formats(graph, "bf16"), **narrow})
    fused = run_passes(graph, options)
    types = {value.name: value.type.dtype for value in fused.values()}
    for node in fused.nodes:
        for weight in (node.inputs[OPS[node.op].input_names.index(name)] for name in OPS[node.op].matrices):
            if weight is not None:
                assert types[node.inputs[0] or ""] == options.format_of(weight).operand
    params = parameters(graph)
    found = outcomes(fused, config, params)
    assert all(np.isfinite(value).all() for value in found.values())


def test_the_listener_hears_every_stage_in_order() -> None:
    graph = golden_graph("llama-gqa")
    heard = stages(graph, PassOptions(formats(graph)))
    assert [name for name, _ in heard] == [BEFORE, *(each.name for each in PASSES)]
    assert heard[0][1] is graph
    assert to_text(heard[-1][1]) == to_text(run_passes(graph, PassOptions(formats(graph))))


def test_an_op_without_an_instruction_is_named() -> None:
    graph = parse(
        "graph G\ninput token_ids: i32[T]\ninput positions: i32[T]\ninput reach: i32[T]\nparam table: f32[8,6]\n"
        "%0: f32[T,6] = embed(token_ids, table; scale=1.0)\n"
        "%1: f32[T,2,3] = reshape(%0; shape=('T', 2, 3))\n"
        "%2: f32[T,2,1] = rope_table(positions, reach; rope=rope(rotary_dim=2, original_max_positions=9))\n"
        "%3: f32[T,2,3] = rope(%1, %2)\n"
        "%4: kv = kv_write(%3, %1; layer=0)\n"
        "%5: f32[T,2,3] = attention(%1, %4; layer=0, scale=1.0, window=None, softcap=None)\n"
        "output logits = %5\n"
    )
    with pytest.raises(InternalError, match="no instruction exists for: kv_write, rope"):
        run_passes(graph, PassOptions({}))


def test_a_product_of_what_is_not_rounded_is_refused() -> None:
    graph = parse(
        "graph G\ninput embeds: f32[T,6]\nparam w: f32[8,6]\n"
        "%0: f32[T,8] = projection(embeds, w; scale=1.0, softcap=None)\noutput logits = %0\n"
    )
    with pytest.raises(InternalError, match="multiplies embeds, which is not rounded"):
        check_instructions(graph)
    check_instructions(run_passes(graph, PassOptions({"w": FORMATS["bf16"]})))


def test_a_weight_of_unknown_format_is_named() -> None:
    with pytest.raises(InternalError, match=r"no format is known for parameter .*gate_proj"):
        run_passes(golden_graph("llama-gqa"), PassOptions({}))


def test_a_pass_that_breaks_the_graph_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from trivium.compile import pipeline  # noqa: PLC0415 - to patch it

    def break_it(graph: Graph, _options: PassOptions) -> Graph:
        return Graph(graph.name, graph.inputs, graph.params, graph.nodes[1:], graph.outputs)

    monkeypatch.setattr(pipeline, "PASSES", (pipeline.Pass("break it", break_it),))
    with pytest.raises(InternalError, match=r"after the pass 'break it': LlamaForCausalLM: .* not defined before"):
        run_passes(golden_graph("llama-gqa"), PassOptions({}))
