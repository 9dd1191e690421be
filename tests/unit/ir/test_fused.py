"""Fused ops: what they refuse, and that each means the primitives that it stands for."""

from __future__ import annotations

import re

import numpy as np
import pytest

from support.pass_cases import OneRequest
from support.tiny_steps import ExactKernels
from trivium.base.errors import InternalError
from trivium.ir.graph import OPERAND_KINDS
from trivium.ir.interpret import Interpreter
from trivium.ir.parser import parse
from trivium.ir.printer import to_text
from trivium.ir.rounding import round_operand
from trivium.ir.verify import verify
from trivium.runtime.arrays import NumpyLibrary
from trivium.runtime.bind import bind_graph

HEAD = """\
graph G
input token_ids: i32[T]
input positions: i32[T]
input reach: i32[T]
input logit_rows: i32[R]
param table: f32[9,6]
param scale: f32[6]
param other: f32[6]
param head: f32[3]
param wq: f32[6,6]
param wk: f32[3,6]
param wv: f32[3,6]
param bq: f32[6]
param bv: f32[3]
param gate: f32[8,6]
param up: f32[8,6]
param gate_bias: f32[8]
%x: f32[T,6] = embed(token_ids, table; scale=1.0)
%y: f32[T,6] = gemm(%x, wq)
%rope: f32[T,2,1] = rope_table(positions, reach; rope=rope(rotary_dim=2, original_max_positions=64))
"""

NORM = "%0: f32[T,6] = add_norm({}; eps={}, kind={}, gives={})\n"
KV = "%q, %kv: f32[T,2,3], kv = rope_kv({}; layer={}, num_heads=2, num_kv_heads=1, head_width={}, norm={}, eps={})\n"
WIDE = "%h: f32[T,12] = projection(%x, wq, wk, wv; scale=1.0, softcap=None)\n"
GATED = "%0: f32[T,8] = gated_projection(%x, gate, {}; activation={}, kind=None, gives={})\n"
ATTEND = "%0: f32[T,6] = attend(%q, %kv; layer={}, scale=1.0, window={}, softcap=None, kind=None, gives=('wide',))\n"
ROPED = WIDE + KV.format("%h", 0, 3, "'none'", None)
TWICE = ROPED + KV.format("%h", 0, 3, "'none'", None).replace("%q, %kv", "%r, %lv")


def outputs_of(body: str, seed: int = 3) -> dict[str, np.ndarray]:
    graph = parse(HEAD + body)
    verify(graph)
    assert parse(to_text(graph)) == graph
    rng, library = np.random.default_rng(seed), NumpyLibrary(ExactKernels())
    params = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in graph.param_shapes().items()}
    inputs = {
        "token_ids": np.array([3, 1, 8, 0]),
        "positions": np.arange(4, dtype=np.int32),
        "reach": np.full(4, 64, np.int32),
        "logit_rows": np.array([3, 1]),
    }
    used = {name for node in graph.nodes for name in node.inputs}
    kept = {param.name for param in graph.params if param.name in used}
    graph = parse("".join(line + "\n" for line in to_text(graph).splitlines() if _keeps(line, kept)))
    bound = bind_graph(graph, params, library)
    return Interpreter(graph, library, bound.arrays).run(inputs, OneRequest())


def _keeps(line: str, kept: set[str]) -> bool:
    return not line.startswith("param ") or line.split()[1].rstrip(":") in kept


def assert_equal(fused: str, primitive: str) -> None:
    found, expected = outputs_of(fused), outputs_of(primitive)
    assert list(found) == list(expected)
    for name in expected:
        assert found[name].shape == expected[name].shape
        np.testing.assert_array_equal(found[name], expected[name])


def test_add_norm_adds_norms_and_gives_both() -> None:
    assert_equal(
        "%0, %1: f32[T,6], f32[T,6] = add_norm(%x, %y, scale, other; eps=1e-05, kind=None, gives=('sum', 'wide'))\n"
        "output a = %0\noutput b = %1\n",
        "%0: f32[T,6] = rms_norm(%y, scale; eps=1e-05)\n%1: f32[T,6] = add(%x, %0)\n"
        "%2: f32[T,6] = rms_norm(%1, other; eps=1e-05)\noutput a = %1\noutput b = %2\n",
    )


def test_add_norm_of_rows_gathers_before_it_norms() -> None:
    assert_equal(
        "%0: f32[R,6] = add_norm(%x, %y, -, other, logit_rows; eps=1e-05, kind=None, gives=('wide',))\noutput a = %0\n",
        "%0: f32[T,6] = add(%x, %y)\n%1: f32[R,6] = gather_rows(%0, logit_rows)\n"
        "%2: f32[R,6] = rms_norm(%1, other; eps=1e-05)\noutput a = %2\n",
    )


@pytest.mark.parametrize("kind", OPERAND_KINDS)
def test_an_operand_is_the_wide_result_rounded(kind: str) -> None:
    norm = f"%0, %1: f32[T,6], {kind}[T,6] = add_norm(%x, -, -, scale; eps=1e-05, "
    gated = f"%0, %1: f32[T,8], {kind}[T,8] = gated_projection(%x, gate, up; activation='silu', "
    attend = f"%0, %1: f32[T,6], {kind}[T,6] = attend(%q, %kv; layer=0, scale=0.5, window=None, softcap=None, "
    before_attend = WIDE + KV.format("%h", 0, 3, "'none'", None)
    bodies = [body + f"kind='{kind}', gives=('wide', 'operand'))\n" for body in (norm, gated, before_attend + attend)]
    for body in bodies:
        found = outputs_of(body + "output wide = %0\noutput operand = %1\n")
        np.testing.assert_array_equal(found["operand"], round_operand(np, found["wide"], kind))
        assert (kind == "f32t") == (found["operand"] == found["wide"]).all()


def test_projection_is_gemms_side_by_side() -> None:
    deltas = "%d: f32[T,12] = gemm(%x, wide_delta)\n"
    deltas += "%dq, %dk, %dv: f32[T,6], f32[T,3], f32[T,3] = split(%d; sizes=(6, 3, 3))\n"
    params = "param wide_delta: f32[12,6]\n"
    assert_equal(
        params + deltas + "%0: f32[T,12] = projection(%x, wq, wk, wv, bq, -, bv, %d; scale=0.5, softcap=2.0)\n"
        "%1, %2, %3: f32[T,6], f32[T,3], f32[T,3] = split(%0; sizes=(6, 3, 3))\n"
        "output q = %1\noutput k = %2\noutput v = %3\n",
        params + deltas + "%0: f32[T,6] = gemm(%x, wq, bq, %dq)\n%1: f32[T,3] = gemm(%x, wk, -, %dk)\n"
        "%2: f32[T,3] = gemm(%x, wv, bv, %dv)\n"
        + "".join(
            f"%s{i}: f32[T,{n}] = scale(%{i}; factor=0.5)\n%c{i}: f32[T,{n}] = softcap(%s{i}; cap=2.0)\n"
            for i, n in enumerate((6, 3, 3))
        )
        + "output q = %c0\noutput k = %c1\noutput v = %c2\n",
    )


def test_projection_add_adds_the_residual() -> None:
    assert_equal(
        "%0: f32[T,6] = projection_add(%x, wq, %y, bq, %x)\noutput a = %0\n",
        "%0: f32[T,6] = gemm(%x, wq, bq, %x)\n%1: f32[T,6] = add(%y, %0)\noutput a = %1\n",
    )


def test_gated_projection_gates_two_products() -> None:
    params = "param wide_delta: f32[16,6]\n%d: f32[T,16] = gemm(%x, wide_delta)\n"
    assert_equal(
        params + "%0: f32[T,8] = gated_projection(%x, gate, up, gate_bias, -, %d; activation='gelu_tanh', kind=None, "
        "gives=('wide',))\noutput a = %0\n",
        params
        + "%dg, %du: f32[T,8], f32[T,8] = split(%d; sizes=(8, 8))\n%0: f32[T,8] = gemm(%x, gate, gate_bias, %dg)\n"
        "%1: f32[T,8] = gemm(%x, up, -, %du)\n%2: f32[T,8] = gated(%0, %1; activation='gelu_tanh')\noutput a = %2\n",
    )


@pytest.mark.parametrize("norm", ["none", "head", "full"])
@pytest.mark.parametrize("table", ["%rope", "-"])
def test_rope_kv_and_attend_are_norm_rope_write_and_attention(norm: str, table: str) -> None:
    q_norm, k_norm = {"none": ("-", "-"), "head": ("head", "-"), "full": ("scale", "head")}[norm]
    eps = None if norm == "none" else 0.01
    q, k = "%q", "%k"
    lines = [
        "%q: f32[T,6] = gemm(%x, wq)\n%k: f32[T,3] = gemm(%x, wk)\n%v: f32[T,3] = gemm(%x, wv)\n",
        "%v1: f32[T,1,3] = reshape(%v; shape=('T', 1, 3))\n",
    ]
    if norm == "full":
        lines.append("%q0: f32[T,6] = rms_norm(%q, scale; eps=0.01)\n%k0: f32[T,3] = rms_norm(%k, head; eps=0.01)\n")
        q, k = "%q0", "%k0"
    lines.append(
        f"%q1: f32[T,2,3] = reshape({q}; shape=('T', 2, 3))\n%k1: f32[T,1,3] = reshape({k}; shape=('T', 1, 3))\n"
    )
    q, k = "%q1", "%k1"
    if norm == "head":
        lines.append("%q2: f32[T,2,3] = rms_norm(%q1, head; eps=0.01)\n")
        q = "%q2"
    if table != "-":
        lines.append(f"%q3: f32[T,2,3] = rope({q}, %rope)\n%k3: f32[T,1,3] = rope({k}, %rope)\n")
        q, k = "%q3", "%k3"
    lines.append(f"%t: kv = kv_write({k}, %v1; layer=4)\n")
    lines.append(f"%o: f32[T,2,3] = attention({q}, %t; layer=4, scale=0.5, window=2, softcap=3.0)\n")
    lines.append("%out: f32[T,6] = reshape(%o; shape=('T', 6))\noutput a = %out\n")
    assert_equal(
        "%h: f32[T,12] = projection(%x, wq, wk, wv; scale=1.0, softcap=None)\n"
        f"%q, %kv: f32[T,2,3], kv = rope_kv(%h, {table}, {q_norm}, {k_norm}; layer=4, num_heads=2, num_kv_heads=1, "
        f"head_width=3, norm='{norm}', eps={eps})\n"
        "%o: f32[T,6] = attend(%q, %kv; layer=4, scale=0.5, window=2, softcap=3.0, kind=None, gives=('wide',))\n"
        "output a = %o\n",
        "".join(lines),
    )


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (NORM.format("%x, -, scale", "1e-05", None, "('wide',)"), "b_weight without b"),
        (NORM.format("%x, %y", "1e-05", None, "('sum',)"), "eps is there exactly where a weight is"),
        (NORM.format("%x, %y, scale", None, None, "('sum',)"), "eps is there exactly where a weight is"),
        (NORM.format("%x", None, None, "('sum',)"), "gives a sum only of a and b"),
        (NORM.format("%x, %y, -, -, logit_rows", None, None, "('sum',)"), "gives a sum only of a and b, all rows"),
        (NORM.format("%x, %y", None, None, "()"), "gives (); it must be some of"),
        (NORM.format("%x, %y", None, None, "('wide', 'sum')"), "in this order"),
        (NORM.format("%x, %y", None, None, "('wide', 'narrow')"), "it must be some of"),
        (NORM.format("%x, %y", None, "'q8'", "('wide',)"), "kind is 'q8' but no operand is given"),
        (NORM.format("%x, %y", None, "'q4'", "('operand',)"), "kind 'q4' is not one of f32t, bf16, q8"),
        (NORM.format("%x, %y", None, None, "('operand',)"), "kind None is not one of"),
        (NORM.format("%x, %y", None, "'q8'", "('operand',)"), "gives q8[T,6] but f32[T,6] is declared"),
        ("%0: f32[T,9] = projection(%x, wq, -, wk; scale=1.0, softcap=None)\n", "weight_2 without those before it"),
        ("%0: f32[T,6] = projection(%x, wq, -, -, -, bv; scale=1.0, softcap=None)\n", "bias_1 without its weight"),
        ("%0: f32[T,6] = projection(%x, wq, -, -, bv; scale=1.0, softcap=None)\n", "bias_0 has N0=3"),
        ("%0: f32[T,9] = projection(%x, wq, wk, -, -, -, -, %y; scale=1.0, softcap=None)\n", "the product has 9"),
        ("%0: f32[T,3] = projection_add(%x, wk, %x)\n", "residual has N=6 but weight_0 has N=3"),
        (GATED.format("wq", "'silu'", "('wide',)"), "up has F=6"),
        (GATED.format("up", "'relu'", "('wide',)"), "'relu' is not one of"),
        (GATED.format("up", "'silu'", "('sum',)"), "it must be some of"),
        (KV.format("%x", 0, 3, "'none'", None), "qkv has 6 columns; its heads have 12"),
        (WIDE + KV.format("%h", -1, 3, "'none'", None), "layer -1 is negative"),
        (WIDE + KV.format("%h", 0, 0, "'none'", None), "must be positive"),
        (WIDE + KV.format("%h, -, head", 0, 3, "'none'", "0.1"), "norm must be none exactly where"),
        (WIDE + KV.format("%h", 0, 3, "'head'", "0.1"), "norm must be none exactly where"),
        (WIDE + KV.format("%h, -, head", 0, 3, "'head'", None), "eps is there exactly where"),
        (WIDE + KV.format("%h, -, head", 0, 3, "'full'", "0.1"), "q_norm has 6=3 but"),
        (WIDE + KV.format("%h, -, head", 0, 3, "'rms'", "0.1"), "norm 'rms' is not one of"),
        (TWICE, "layer 0 is written twice"),
        (ROPED + ATTEND.format(1, None), "attend: reads layer 1 with the token of layer 0"),
        (ROPED + ATTEND.format(0, 0), "window 0 sees nothing"),
        ("%0: f32[T,6] = adapter_delta(%x; parameters=('wq',), widths=(6,), rows='R')\n", "rows 'R' is not one of T"),
        ("%0: f32[T,6] = adapter_delta(%x; parameters=('wq',), widths=(6, 3), rows='T')\n", "1 parameters, 2 widths"),
    ],
)  # fmt: skip
def test_a_fused_op_that_does_not_fit_is_refused(body: str, problem: str) -> None:
    with pytest.raises(InternalError, match=re.escape(problem)):
        verify(parse(HEAD + body + "output a = %x\n"))


def test_an_operand_is_multiplied_and_nothing_else() -> None:
    operand = "%0: q8[T,6] = add_norm(%x; eps=None, kind='q8', gives=('operand',))\n"
    for op in ("projection(%0, wq; scale=1.0, softcap=None)", "projection_add(%0, wq, %y)"):
        verify(parse(f"{HEAD}{operand}%1: f32[T,6] = {op}\noutput a = %1\n"))
    for op in ("add(%0, %y)", "gemm(%0, wq)", "projection_add(%y, wq, %0)", "scale(%0; factor=2.0)"):
        with pytest.raises(InternalError, match="must have element type f32"):
            verify(parse(f"{HEAD}{operand}%1: f32[T,6] = {op}\noutput a = %1\n"))
