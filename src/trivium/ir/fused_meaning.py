"""What each fused op computes: the primitives of `ir.meaning`, one after the other, and the rounding of operands.

So a graph means the same before and after a pass that only regroups, to the bit; only rounding to `bf16` and `q8`
changes numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trivium.base.errors import InternalError
from trivium.ir import meaning
from trivium.ir.rounding import round_operand

if TYPE_CHECKING:
    from trivium.config.model import Activation
    from trivium.ir.fused import Form
    from trivium.ir.meaning import Array, Pass


def add_norm(  # noqa: PLR0913 - the op's operands
    run: Pass,
    a: Array,
    b: Array | None,
    b_weight: Array | None,
    weight: Array | None,
    rows: Array | None,
    *,
    eps: float | None,
    kind: str | None,
    gives: tuple[Form, ...],
) -> Any:
    """Add, norm, pick rows, round."""
    if b is not None and b_weight is not None:
        b = meaning.rms_norm(run, b, b_weight, eps=_given(eps))
    total = a if b is None else meaning.add(run, a, b)
    result = total if rows is None else meaning.gather_rows(run, total, rows)
    if weight is not None:
        result = meaning.rms_norm(run, result, weight, eps=_given(eps))
    return _in_forms(run, result, kind, gives, total)


def projection(  # noqa: PLR0913, PLR0917 - the op's operands
    run: Pass,
    x: Array,
    weight_0: Any,
    weight_1: Any | None,
    weight_2: Any | None,
    bias_0: Array | None,
    bias_1: Array | None,
    bias_2: Array | None,
    delta: Array | None,
    *,
    scale: float,
    softcap: float | None,
) -> Array:
    """Multiply part by part."""
    products, start = [], 0
    for weight, bias in ((weight_0, bias_0), (weight_1, bias_1), (weight_2, bias_2)):
        if weight is not None:
            product = meaning.gemm(run, x, weight, bias, None)
            end = start + product.shape[1]
            if delta is not None:
                product += delta[:, start:end]
            products.append(product)
            start = end
    joined = products[0] if len(products) == 1 else run.xp.concat(products, axis=-1)
    joined = joined if scale == 1.0 else meaning.scale(run, joined, factor=scale)
    return joined if softcap is None else meaning.softcap(run, joined, cap=softcap)


def projection_add(
    run: Pass, x: Array, weight_0: Any, residual: Array, bias_0: Array | None, delta: Array | None
) -> Array:
    """Multiply, then add the residual."""
    return meaning.add(run, residual, meaning.gemm(run, x, weight_0, bias_0, delta))


def gated_projection(  # noqa: PLR0913 - the op's operands
    run: Pass,
    x: Array,
    gate: Any,
    up: Any,
    gate_bias: Array | None,
    up_bias: Array | None,
    delta: Array | None,
    *,
    activation: Activation,
    kind: str | None,
    gives: tuple[Form, ...],
) -> Any:
    """Multiply twice, gate, round."""
    num_columns = 0 if delta is None else delta.shape[1] // 2
    deltas = (None, None) if delta is None else (delta[:, :num_columns], delta[:, num_columns:])
    gates = meaning.gemm(run, x, gate, gate_bias, deltas[0])
    ups = meaning.gemm(run, x, up, up_bias, deltas[1])
    return _in_forms(run, meaning.gated(run, gates, ups, activation=activation), kind, gives)


def rope_kv(  # noqa: PLR0913 - the op's operands and attributes
    run: Pass,
    qkv: Array,
    table: Array | None,
    q_norm: Array | None,
    k_norm: Array | None,
    *,
    layer: int,
    num_heads: int,
    num_kv_heads: int,
    head_width: int,
    norm: str,
    eps: float | None,
) -> tuple[Array, None]:
    """Cut, norm, rotate, store.

    ::

        column    0 ....... H * D ........ (H + G) * D ........ (H + 2 G) * D
        holds     | q       | k            | v                  |
    """
    kv_width = num_kv_heads * head_width
    q, k, v = meaning.split(run, qkv, sizes=(num_heads * head_width, kv_width, kv_width))

    def turned(x: Array, heads: int, weight: Array | None) -> Array:
        if weight is not None and norm == "full":
            x = meaning.rms_norm(run, x, weight, eps=_given(eps))
        x = meaning.reshape(run, x, shape=("T", heads, head_width))
        if weight is not None and norm == "head":
            x = meaning.rms_norm(run, x, weight, eps=_given(eps))
        return x if table is None else meaning.rope(run, x, table)

    values = meaning.reshape(run, v, shape=("T", num_kv_heads, head_width))
    meaning.kv_write(run, turned(k, num_kv_heads, k_norm), values, layer=layer)
    return turned(q, num_heads, q_norm), None


def attend(  # noqa: PLR0913 - the op's attributes
    run: Pass,
    q: Array,
    kv: None,
    *,
    layer: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    kind: str | None,
    gives: tuple[Form, ...],
) -> Any:
    """Attend, lay the heads side by side, round."""
    heads = meaning.attention(run, q, kv, layer=layer, scale=scale, window=window, softcap=softcap)
    rows = meaning.reshape(run, heads, shape=("T", q.shape[1] * q.shape[2]))
    return _in_forms(run, rows, kind, gives)


def _given(eps: float | None) -> float:
    if eps is None:
        raise InternalError("a norm without eps")
    return eps


def _in_forms(run: Pass, wide: Array, kind: str | None, gives: tuple[Form, ...], total: Array | None = None) -> Any:
    """Return the forms that are wanted: one array, or a tuple of several."""
    made: dict[str, Array | None] = {"sum": total, "wide": wide}
    if kind is not None:
        made["operand"] = round_operand(run.xp, wide, kind)
    forms = tuple(made[form] for form in gives)
    return forms[0] if len(forms) == 1 else forms


FUSED_MEANINGS: Mapping[str, Callable[..., Any]] = {
    each.__name__: each for each in (add_norm, projection, projection_add, gated_projection, rope_kv, attend)
}
"""Fused op to what it computes; an op of several outputs gives a tuple."""
