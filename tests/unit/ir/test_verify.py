"""Each rule of a legal graph, broken once; builder and shape errors."""

from __future__ import annotations

import re

import pytest

from trivium.base.errors import InternalError
from trivium.config.model import RopeConfig
from trivium.ir.builder import Builder
from trivium.ir.fused import FUSED
from trivium.ir.graph import TensorType
from trivium.ir.ops import OPS, PRIMITIVES
from trivium.ir.parser import parse
from trivium.ir.shapes import Shapes
from trivium.ir.verify import verify

HEAD = """\
graph G
input token_ids: i32[T]
param table: f32[8,6]
param weight: f32[6,6]
"""
EMBED = "%0: f32[T,6] = embed(token_ids, table; scale=1.0)\n"
HEADS = "%1: f32[T,2,3] = reshape(%0; shape=('T', 2, 3))\n"
WRITE = "%2: kv = kv_write(%1, %1; layer=0)\n"
READ = "%3: f32[T,2,3] = attention(%1, %2; layer=0, scale=1.0, window=None, softcap=None)\n"
OUTPUT = "output logits = %0\n"


def test_the_unbroken_graph_is_legal() -> None:
    verify(parse(HEAD + EMBED + HEADS + WRITE + READ + OUTPUT))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (EMBED + EMBED + OUTPUT, "%0 is defined twice"),
        ("%0: f32[T,6] = embed(token_ids, nothing; scale=1.0)\n" + OUTPUT, "nothing, which is not defined before"),
        ("%0: f32[T,6] = embed(token_ids, %0; scale=1.0)\n" + OUTPUT, "%0, which is not defined before"),
        ("%0: f32[T,6] = conv(token_ids)\n" + OUTPUT, "unknown op 'conv'"),
        ("%0: f32[T,6] = embed(token_ids; scale=1.0)\n" + OUTPUT, "weight is missing"),
        ("%0: f32[T,6] = embed(token_ids, table, -, table; scale=1.0)\n" + OUTPUT, "has 4 operands"),
        ("%0: f32[T,6] = embed(token_ids, table)\n" + OUTPUT, "has attributes []"),
        ("%0: f32[T,6] = embed(token_ids, table; scale=1)\n" + OUTPUT, "scale is 1; it must be float"),
        ("%0: f32[T,6] = embed(token_ids, table; scale=1e999)\n" + OUTPUT, "scale is inf; it must be finite"),
        ("%0: f32[T,8] = embed(token_ids, table; scale=1.0)\n" + OUTPUT, "gives f32[T,6] but f32[T,8] is declared"),
        ("%0: f32[T,6] = embed(table, table; scale=1.0)\n" + OUTPUT, "must have element type i32"),
        (EMBED + "output logits = %7\n", "%7, which nothing defines"),
        (EMBED, "has no output"),
        (EMBED + HEADS + WRITE + "%4: kv = kv_write(%1, %1; layer=0)\n" + OUTPUT, "layer 0 is written twice"),
        (EMBED + HEADS + WRITE.replace("=0", "=1") + READ + OUTPUT, "reads layer 0 with the token of layer 1"),
        (EMBED + HEADS + READ.replace("%2;", "%1;") + OUTPUT, "kv must be what kv_write gave"),
        (EMBED + HEADS + WRITE + READ.replace("window=None", "window=0") + OUTPUT, "window 0 sees nothing"),
        (EMBED + HEADS + WRITE.replace("layer=0", "layer=-1") + OUTPUT, "layer -1 is negative"),
        (EMBED + HEADS.replace("2, 3", "2, 2").replace("2,3", "2,2") + OUTPUT, "different numbers"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_an_error_that_names_the_node(body: str, problem: str) -> None:
    with pytest.raises(InternalError, match=re.escape(problem)) as caught:
        verify(parse(HEAD + body))
    assert str(caught.value).startswith("G: ")


def test_sizes_must_be_positive_numbers_or_known_symbols() -> None:
    with pytest.raises(InternalError, match="'Q' is no size"):
        verify(parse("graph G\ninput x: f32[Q]\noutput y = x\n"))
    with pytest.raises(InternalError, match="must be positive numbers"):
        verify(parse("graph G\nparam x: f32[T]\noutput y = x\n"))


def test_the_builder_refuses_operands_that_do_not_fit_at_the_line_that_wrote_them() -> None:
    b = Builder("G")
    x = b.embed(b.input("token_ids"), b.param("table", (8, 6)))
    with pytest.raises(InternalError, match="gemm: weight has K=5 but x has K=6"):
        b.gemm(x, b.param("weight", (4, 5)))
    with pytest.raises(InternalError, match=r"split: sizes \(2, 2\) do not add up to 6"):
        b.split(x, (2, 2))
    with pytest.raises(InternalError, match="activation 'relu' is not one of"):
        b.gated(x, x, activation="relu")  # type: ignore[arg-type]
    with pytest.raises(InternalError, match="parameter table is"):
        b.param("table", (8, 7))
    with pytest.raises(InternalError, match="no input 'slots'"):
        b.input("slots")
    with pytest.raises(InternalError, match="embeds needs its shape"):
        b.input("embeds")
    with pytest.raises(InternalError, match="rotary_dim 3 is odd"):
        b.rope_table(b.input("positions"), b.input("reach"), rope=RopeConfig(rotary_dim=3, original_max_positions=8))
    b.output("logits", x)
    with pytest.raises(InternalError, match="declared twice"):
        b.output("logits", x)


def test_rope_wider_than_the_head_is_refused() -> None:
    b = Builder("G")
    heads = b.reshape(b.embed(b.input("token_ids"), b.param("table", (8, 6))), ("T", 2, 3))
    rope = RopeConfig(rotary_dim=4, original_max_positions=8)
    with pytest.raises(InternalError, match="rotates 4 elements of heads that have 3"):
        b.rope(heads, b.rope_table(b.input("positions"), b.input("reach"), rope=rope))


def test_shapes_bind_letters_across_operands() -> None:
    shapes = Shapes("op")
    shapes.match("x", TensorType("f32", ("T", 4, 8)), "... K")
    assert shapes.sizes("... K") == ("T", 4, 8)
    with pytest.raises(InternalError, match="y has K=7 but x has K=8"):
        shapes.match("y", TensorType("f32", (7,)), "K")
    with pytest.raises(InternalError, match=r"z is f32\[T\]; it must be"):
        shapes.match("z", TensorType("f32", ("T",)), "T K")
    shapes.match("w", TensorType("f32", ("T",)), "S")
    with pytest.raises(InternalError, match="must be a number, not the symbol T"):
        shapes.number("S")


def test_every_op_says_what_it_means() -> None:
    assert len(PRIMITIVES) == 16
    assert len(FUSED) == 6
    assert not set(PRIMITIVES) & set(FUSED)
    assert all(schema.meaning and schema.inputs for schema in OPS.values())
    assert [name for name, schema in OPS.items() if schema.has_effect] == ["kv_write", "rope_kv"]
