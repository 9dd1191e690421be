"""Graphs that no architecture has: every pass keeps their bits, and what has instructions is run by its plan alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from support.pass_cases import (
    EMBED,
    ROPE,
    OneRequest,
    drawn_adapters,
    drawn_parameters,
    graph_of,
    options_for,
    step_inputs,
    values_of,
)
from support.plan_interpreter import PlanInterpreter
from trivium.base.errors import InternalError
from trivium.cache.spec import KVGroup, KVSpec
from trivium.compile.emit import PlanFacts, emit
from trivium.compile.pipeline import run_passes
from trivium.config.model import LayerConfig, ModelConfig
from trivium.ir.graph import Graph
from trivium.plan.check import check_plan
from trivium.plan.program import KVStorage, Limits

EPS = st.sampled_from(["0.01", "0.5"])


@dataclass
class Writer:
    """Writes a random graph line by line; `rows` are the values [T, 6] so far."""

    draw: st.DrawFn
    lines: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=lambda: ["%x"])
    layers: int = 0
    count: int = 0

    def row(self) -> str:
        """Pick a value, the latest most often."""
        recent = st.sampled_from(self.rows[-2:])
        return self.draw(recent | recent | st.sampled_from(self.rows))

    def new(self, kind: str, op: str) -> str:
        self.count += 1
        name = f"%v{self.count}"
        self.lines.append(f"{name}: {kind} = {op}\n")
        return name

    def gemm(self, x: str, weight: str, width: int, bias: str | None = None) -> str:
        extra = f", {bias}" if bias and self.draw(st.booleans()) else ""
        return self.new(f"f32[T,{width}]", f"gemm({x}, {weight}{extra})")

    def norm(self, x: str) -> str:
        weight = self.draw(st.sampled_from(["norm", "norm2"]))
        return self.new("f32[T,6]", f"rms_norm({x}, {weight}; eps={self.draw(EPS)})")

    def product(self) -> None:
        self.rows.append(self.gemm(self.row(), self.draw(st.sampled_from(["w", "w2"])), 6, "bias"))

    def normed(self) -> None:
        self.rows.append(self.norm(self.row()))

    def plain(self) -> None:
        x, y = self.row(), self.row()
        op = self.draw(st.sampled_from([
            f"add({x}, {y})", f"add({x}, {y})", f"mul({x}, {y})", f"scale({x}; factor=0.5)", f"scale({x}; factor=1.0)",
            f"softcap({x}; cap=2.0)", f"gated({x}, {y}; activation='silu')",
        ]))  # fmt: skip
        self.rows.append(self.new("f32[T,6]", op))

    def views(self) -> None:
        heads = self.new("f32[T,2,3]", f"reshape({self.row()}; shape=('T', 2, 3))")
        if self.draw(st.booleans()):
            heads = self.new("f32[T,2,3]", f"rms_norm({heads}, head_norm; eps=0.1)")
        self.rows.append(self.new("f32[T,6]", f"reshape({heads}; shape=('T', 6))"))

    def feed_forward(self) -> None:
        x = self.norm(self.row()) if self.draw(st.booleans()) else self.row()
        other = x if self.draw(st.integers(0, 4)) else self.row()
        gate, up = self.gemm(x, "gate", 8), self.gemm(other, "up", 8, "up_bias")
        gated = self.new("f32[T,8]", f"gated({gate}, {up}; activation='gelu_tanh')")
        down = self.gemm(gated, "down", 6, "bias")
        self.rows.append(self.new("f32[T,6]", f"add({self.row()}, {down})"))

    def attention(self) -> None:
        x = self.norm(self.row()) if self.draw(st.booleans()) else self.row()
        other = x if self.draw(st.integers(0, 5)) else self.row()
        norm, has_rope = self.draw(st.sampled_from(["none", "head", "full"])), self.draw(st.booleans())
        q = self.path(self.gemm(x, "w", 6, "bias"), 2, norm, has_rope=has_rope)
        k = self.path(self.gemm(x, "k", 3, "k_bias"), 1, norm, has_rope=has_rope)
        v = self.path(self.gemm(other, "v", 3, "k_bias"), 1, "none", has_rope=False)
        token = self.new("kv", f"kv_write({k}, {v}; layer={self.layers})")
        window = self.draw(st.sampled_from([None, 2]))
        attributes = f"layer={self.layers}, scale=0.5, window={window}, softcap=None"
        out = self.new("f32[T,2,3]", f"attention({q}, {token}; {attributes})")
        self.layers += 1
        self.rows.append(self.new("f32[T,6]", f"reshape({out}; shape=('T', 6))"))

    def path(self, x: str, heads: int, norm: str, *, has_rope: bool) -> str:
        if norm == "full":
            x = self.new(f"f32[T,{3 * heads}]", f"rms_norm({x}, {'norm' if heads > 1 else 'head_norm'}; eps=0.1)")
        x = self.new(f"f32[T,{heads},3]", f"reshape({x}; shape=('T', {heads}, 3))")
        if norm == "head":
            x = self.new(f"f32[T,{heads},3]", f"rms_norm({x}, head_norm; eps=0.1)")
        return self.new(f"f32[T,{heads},3]", f"rope({x}, %r)") if has_rope else x


@st.composite
def bodies(draw: st.DrawFn) -> str:
    writer = Writer(draw)
    steps = st.sampled_from(["product", "normed", "plain", "plain", "views", "feed_forward", "attention"])
    for step in draw(st.lists(steps, min_size=3, max_size=8)):
        getattr(writer, step)()
        if draw(st.booleans()):
            sides = writer.row(), writer.rows[-1]
            writer.rows.append(writer.new("f32[T,6]", f"add({', '.join(draw(st.permutations(sides)))})"))
    outputs = dict.fromkeys((writer.rows[-1], draw(st.sampled_from(writer.rows[1:]))))
    ends = []
    for idx, value in enumerate(outputs):
        if draw(st.booleans()):
            gathered = writer.new("f32[R,6]", f"gather_rows({value}, logit_rows)")
            if draw(st.booleans()):
                gathered = writer.new("f32[R,6]", f"rms_norm({gathered}, norm; eps=0.01)")
            ends.append(f"output out{idx} = {writer.new('f32[R,3]', f'gemm({gathered}, k)')}\n")
        else:
            ends.append(f"output out{idx} = {value}\n")
    return EMBED + ROPE + "".join(writer.lines) + "".join(ends)


@settings(max_examples=60, deadline=None)
@given(body=bodies(), has_adapters=st.booleans())
def test_every_pass_keeps_every_bit(body: str, has_adapters: bool) -> None:
    graph = graph_of(body)
    stages: list[tuple[str, Graph]] = []
    try:
        run_passes(
            graph,
            options_for(graph, has_adapters=has_adapters),
            on_pass=lambda name, after: stages.append((name, after)),
        )
    except InternalError as error:
        if "no instruction exists for" not in str(error):
            raise
    first = "add adapters" if has_adapters else "input"
    start = [name for name, _ in stages].index(first)
    expected = values_of(stages[start][1])
    before = stages[start][1]
    for name, after in stages[start + 1 :]:
        if after != before:
            found = values_of(after)
            assert list(found) == list(expected)
            for output, value in expected.items():
                np.testing.assert_array_equal(found[output], value, err_msg=f"after '{name}': {output}")
        before = after


CONFIG = ModelConfig(
    architecture="Random",
    num_layers=8,
    model_width=6,
    ffn_width=8,
    num_heads=2,
    num_kv_heads=1,
    head_width=3,
    vocab_size=9,
    max_positions=64,
    norm_eps=0.01,
    layers=(LayerConfig(rope=None),) * 8,
    attention_scale=0.5,
)
KV = KVStorage(spec=KVSpec((KVGroup("full", tuple(range(8)), 192),), 4), dtype="f32")
FORMATS = st.sampled_from(["f32", "bf16", "i8_g32", "i4m_g32", "q4_k"])
MATRICES = ("table", "w", "w2", "k", "v", "gate", "up", "down")


@settings(max_examples=60, deadline=None)
@given(body=bodies(), has_adapters=st.booleans(), formats=st.fixed_dictionaries(dict.fromkeys(MATRICES, FORMATS)))
def test_what_has_instructions_is_run_by_its_plan_alone(body: str, has_adapters: bool, formats: dict[str, Any]) -> None:
    graph = graph_of(body)
    options = options_for(graph, has_adapters=has_adapters, **formats)
    try:
        fused = run_passes(graph, options)
    except InternalError as error:
        assert "no instruction exists for: kv_write" in str(error)  # noqa: PT017 - most graphs have all instructions
        return
    facts = PlanFacts(
        config=CONFIG, formats=options.formats, kv=KV, limits=Limits(max_num_batched_tokens=4, max_logit_rows=2)
    )
    plan = emit({"base": fused}, facts)
    check_plan(plan)
    memory = OneRequest()
    found = PlanInterpreter(plan, "base", drawn_parameters(graph)).run(step_inputs(), memory, drawn_adapters(fused))
    found |= memory.contents()
    expected = values_of(fused)
    assert list(found) == list(expected)
    for output, value in expected.items():
        np.testing.assert_array_equal(found[output].reshape(value.shape), value, err_msg=output)


def test_random_graphs_hold_what_passes_look_for() -> None:
    """The strategy must not drift to graphs in which nothing happens."""
    seen: set[str] = set()

    @settings(max_examples=60, deadline=None, database=None)
    @given(body=bodies())
    def look(body: str) -> None:
        graph = graph_of(body)
        try:
            seen.update(node.op for node in run_passes(graph, options_for(graph)).nodes)
        except InternalError as error:
            assert "no instruction exists for: kv_write" in str(error)  # noqa: PT017

    look()
    fused = {"add_norm", "projection", "projection_add", "gated_projection", "rope_kv", "attend"}
    assert fused <= seen
