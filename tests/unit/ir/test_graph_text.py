"""Printer and parser: text is stable, and reading it back gives the same graph."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.tiny_steps import tiny_config, tiny_graph
from trivium.base.errors import InternalError
from trivium.config.model import RopeConfig
from trivium.ir.builder import Builder
from trivium.ir.graph import Graph
from trivium.ir.parser import parse
from trivium.ir.printer import to_text
from trivium.ir.verify import verify

SMALL = """\
graph Small
input token_ids: i32[T]
input positions: i32[T]
input reach: i32[T]
param table: f32[8,6]
param weight: f32[6,6]
%0: f32[T,6] = embed(token_ids, table; scale=1.0)
%1: f32[T,2,1] = rope_table(positions, reach; rope=rope(rotary_dim=2, factor=2.0, original_max_positions=4))
%2: f32[T,6] = gemm(%0, weight, -, %0)
%3, %4: f32[T,2], f32[T,4] = split(%2; sizes=(2, 4))
%5: f32[T,1,4] = reshape(%4; shape=('T', 1, 4))
%6: f32[T,1,4] = rope(%5, %1)
%7: kv = kv_write(%6, %5; layer=0)
%8: f32[T,1,4] = attention(%6, %7; layer=0, scale=0.5, window=None, softcap=30.0)
output logits = %8
"""


def small_graph() -> Graph:
    b = Builder("Small")
    tokens, positions, reach = b.input("token_ids"), b.input("positions"), b.input("reach")
    x = b.embed(tokens, b.param("table", (8, 6)))
    table = b.rope_table(positions, reach, rope=RopeConfig(rotary_dim=2, original_max_positions=4, factor=2.0))
    _, wide = b.split(b.gemm(x, b.param("weight", (6, 6)), delta=x), (2, 4))
    heads = b.reshape(wide, ("T", 1, 4))
    turned = b.rope(heads, table)
    kv = b.kv_write(turned, heads, layer=0)
    b.output("logits", b.attention(turned, kv, layer=0, scale=0.5, softcap=30.0))
    return b.build()


def test_a_graph_prints_as_this_text() -> None:
    assert to_text(small_graph()) == SMALL


def test_the_text_reads_back_as_the_same_graph() -> None:
    graph = parse(SMALL)
    verify(graph)
    assert graph == small_graph()


@pytest.mark.parametrize("has_embeds", [True, False])
def test_a_whole_model_reads_back_as_the_same_graph(has_embeds: bool) -> None:
    graph = tiny_graph(tiny_config(window=5, softcap=4.0), has_embeds=has_embeds)
    assert parse(to_text(graph)) == graph
    assert to_text(parse(to_text(graph))) == to_text(graph)


finite = st.floats(allow_nan=False, allow_infinity=False)
ropes = st.builds(
    RopeConfig,
    kind=st.sampled_from(["default", "llama3", "yarn", "longrope"]),
    theta=finite,
    rotary_dim=st.integers(1, 64).map(lambda half: 2 * half),
    factor=finite,
    original_max_positions=st.integers(1, 1 << 20),
    attention_factor=st.none() | finite,
    truncate=st.booleans(),
    short_factor=st.lists(finite, max_size=3).map(tuple),
)


@given(rope=ropes, factor=finite)
def test_attributes_of_any_value_survive_the_text(rope: RopeConfig, factor: float) -> None:
    b = Builder("Any")
    table = b.rope_table(b.input("positions"), b.input("reach"), rope=rope)
    b.output("table", b.scale(table, factor))
    graph = b.build()
    assert parse(to_text(graph)) == graph


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("%0: f32[T,6] = embed(token_ids", "expected NAMES"),
        ("%0 f32[T,6]", "expected NAMES"),
        ("%0: f64[T] = add(a, b)", "expected types"),
        ("%0, %1: f32[T] = add(a, b)", "zip"),
        ("%0: f32[T] = scale(a; factor=__import__('os'))", "malformed"),
        ("%0: f32[T] = scale(a; factor=rope(1))", "malformed"),
        ("%0: f32[T] = scale(a; factor={})", "cannot be an attribute"),
        ("%0: f32[T] = rope_table(a, b; rope=rope(nope=1))", "nope"),
        ("param weight f32[6]", "expected NAME: TYPE"),
        ("output logits", "expected NAME = VALUE"),
    ],
)
def test_a_line_that_is_no_graph_text_is_an_error_with_its_number(line: str, problem: str) -> None:
    with pytest.raises(InternalError, match=rf"line 2 .*{problem}"):
        parse(f"graph Bad\n{line}\n")
