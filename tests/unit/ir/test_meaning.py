"""Every op's meaning against the same formula written out in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.tiny_steps import ExactKernels
from trivium.base.errors import InternalError
from trivium.config.model import RopeConfig
from trivium.ir import attention
from trivium.ir.attention import KVRead, Sight
from trivium.ir.interpret import MEANINGS
from trivium.ir.meaning import Pass
from trivium.ir.ops import OPS
from trivium.runtime.arrays import Matrix, NumpyLibrary

RNG = np.random.default_rng(7)


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


class OneRead:
    """KV memory that holds one prepared read."""

    def __init__(self, *reads: KVRead) -> None:
        self.kv_reads = reads
        self.written: list[Any] = []

    def write(self, layer: int, k: np.ndarray, v: np.ndarray) -> None:
        self.written.append((layer, k, v))

    def reads(self, layer: int, window: int | None) -> Iterator[KVRead]:
        yield from self.kv_reads


def run(op: str, *operands: Any, memory: OneRead | None = None, **attributes: Any) -> Any:
    library = NumpyLibrary(ExactKernels())
    return MEANINGS[op](Pass(library, memory or OneRead()), *operands, **attributes)


def matrix(weight: np.ndarray, *, is_multiplied: bool = True) -> Matrix:
    return NumpyLibrary(ExactKernels()).bind_matrix(weight, is_multiplied=is_multiplied)


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=3e-6, atol=3e-6)


def test_every_op_has_a_meaning_and_no_meaning_is_left_over() -> None:
    assert set(MEANINGS) == set(OPS)


def test_embed_looks_up_scales_and_lets_given_rows_win() -> None:
    table, ids = draw(9, 4), np.array([3, 0, 3])
    for is_multiplied in (True, False):
        found = run("embed", ids, matrix(table, is_multiplied=is_multiplied), None, scale=2.0)
        assert_close(found, table[ids] * 2.0)
    embeds = np.full((3, 4), np.nan, np.float32)
    embeds[1] = 5.0
    found = run("embed", ids, matrix(table), embeds, scale=2.0)
    assert_close(found, np.stack([table[3] * 2, embeds[1], table[3] * 2]))


@pytest.mark.parametrize("shape", [(3, 8), (3, 2, 8)])
def test_rms_norm_divides_by_the_root_of_the_mean_square(shape: tuple[int, ...]) -> None:
    x, weight = draw(*shape), draw(8)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + 1e-3) * weight
    assert_close(run("rms_norm", x, weight, eps=1e-3), expected)


def test_gemm_adds_bias_and_delta() -> None:
    x, weight, bias, delta = draw(3, 8), draw(5, 8), draw(5), draw(3, 5)
    product = x.astype(np.float64) @ weight.T
    assert_close(run("gemm", x, matrix(weight), None, None), product)
    assert_close(run("gemm", x, matrix(weight), bias, None), product + bias)
    assert_close(run("gemm", x, matrix(weight), bias, delta), product + bias + delta)


def test_split_and_reshape_keep_elements() -> None:
    x = draw(3, 10)
    first, second = run("split", x, sizes=(4, 6))
    assert first.flags.c_contiguous
    np.testing.assert_array_equal(np.concatenate([first, second], axis=1), x)
    np.testing.assert_array_equal(run("reshape", x, shape=("T", 2, 5)), x.reshape(3, 2, 5))


def test_rope_rotates_half_split_pairs_and_leaves_the_rest() -> None:
    config = RopeConfig(rotary_dim=4, original_max_positions=64, theta=100.0)
    positions, x = np.array([0, 1, 7], np.int32), draw(3, 2, 6)
    table = run("rope_table", positions, np.full(3, 64, np.int32), rope=config)
    assert table.shape == (3, 2, 2)
    found = run("rope", x, table)
    pairs = x[..., :2] + 1j * x[..., 2:4]
    angles = positions[:, None] * np.array([1.0, 0.1])
    turned = pairs * np.exp(1j * angles)[:, None, :]
    assert_close(found, np.concatenate([turned.real, turned.imag, x[..., 4:]], axis=-1))


def test_activations_gate_and_survive_extremes() -> None:
    gate, up = np.array([-500.0, -3.0, -0.0, 0.5, 4.0, 500.0], np.float32), draw(6)
    wide = gate.astype(np.float64)
    silu = wide * np.exp(np.minimum(wide, 0)) / (1 + np.exp(-np.abs(wide)))
    assert_close(run("gated", gate, up, activation="silu"), silu * up)
    gelu = 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    assert_close(run("gated", gate, up, activation="gelu_tanh"), gelu * up)


def test_no_meaning_changes_its_operands() -> None:
    gate, up, x = draw(4, 6), draw(4, 6), draw(4, 6)
    copies = [gate.copy(), up.copy(), x.copy()]
    run("gated", gate, up, activation="silu")
    run("gated", gate, up, activation="gelu_tanh")
    for op, attributes in (("scale", {"factor": 2.0}), ("softcap", {"cap": 3.0})):
        run(op, x, **attributes)
    run("rms_norm", x, draw(6), eps=1e-5)
    run("add", x, up)
    run("mul", x, up)
    for found, expected in zip((gate, up, x), copies, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_elementwise_ops_do_what_their_line_says() -> None:
    a, b = draw(3, 4), draw(3, 4)
    assert_close(run("add", a, b), a.astype(np.float64) + b)
    assert_close(run("mul", a, b), a.astype(np.float64) * b)
    assert_close(run("scale", a, factor=0.3), a * 0.3)
    assert_close(run("softcap", a, cap=2.0), 2.0 * np.tanh(a / 2.0))
    np.testing.assert_array_equal(run("gather_rows", a, np.array([2, 0])), a[[2, 0]])


def test_kv_write_hands_keys_and_values_to_the_memory() -> None:
    memory, k, v = OneRead(), draw(3, 2, 4), draw(3, 2, 4)
    assert run("kv_write", k, v, memory=memory, layer=5) is None
    assert memory.written == [(5, k, v)]


class TwoAdapters:
    """Deltas that say what was asked."""

    def __init__(self, width: int = 3) -> None:
        self.width = width

    def delta(self, parameter: str, x: np.ndarray, rows: str) -> np.ndarray:
        return np.full((len(x), self.width), len(parameter) + x[0, 0] + (rows == "R") * 0.5, np.float32)


def test_adapter_deltas_come_from_the_step_parameter_by_parameter() -> None:
    x, library = np.ones((2, 4), np.float32), NumpyLibrary(ExactKernels())
    attributes = {"parameters": ("a", "bcd"), "widths": (3, 3), "rows": "R"}
    found = MEANINGS["adapter_delta"](Pass(library, OneRead(), TwoAdapters()), x, **attributes)
    np.testing.assert_array_equal(found, np.repeat([[2.5, 4.5]], 2, axis=0).repeat(3, axis=1))
    with pytest.raises(InternalError, match="the step brings none"):
        run("adapter_delta", x, **attributes)
    with pytest.raises(InternalError, match=r"delta of a is \(2, 4\)"):
        MEANINGS["adapter_delta"](Pass(library, OneRead(), TwoAdapters(4)), x, **attributes)


def attend_slowly(
    q: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    position: int,
    first: int,
    window: int | None,
    cap: float | None,
) -> np.ndarray:
    """One row, one head: q [D], keys and values [K, D] that begin at position `first`."""
    seen = [
        idx
        for idx in range(len(keys))
        if first + idx <= position and (window is None or first + idx > position - window)
    ]
    scores = keys[seen].astype(np.float64) @ q.astype(np.float64)
    if cap is not None:
        scores = cap * np.tanh(scores / cap)
    shares = np.exp(scores - scores.max())
    return shares / shares.sum() @ values[seen].astype(np.float64)


@settings(max_examples=40, deadline=None)
@given(
    num_requests=st.integers(1, 3),
    num_tokens=st.integers(1, 5),
    num_shared=st.integers(1, 3),
    before=st.integers(0, 6),
    window=st.sampled_from([None, 1, 3, 100]),
    softcap=st.sampled_from([None, 2.0]),
    first=st.sampled_from([0, 64]),
    scores_at_once=st.sampled_from([1, 60, 1 << 19]),
)
def test_attention_is_the_softmax_over_what_each_row_sees(
    num_requests: int,
    num_tokens: int,
    num_shared: int,
    before: int,
    window: int | None,
    softcap: float | None,
    first: int,
    scores_at_once: int,
) -> None:
    num_kv_heads, width = 2, 4
    num_keys = before + num_tokens + 3
    q = draw(num_requests * num_tokens, num_kv_heads * num_shared, width)
    keys, values = draw(num_kv_heads, num_requests, num_keys, width), draw(num_kv_heads, num_requests, num_keys, width)
    positions = np.tile(first + before + np.arange(num_tokens, dtype=np.int32), (num_requests, 1))
    sight = Sight(positions, np.full(num_requests, first, np.int32), window)
    read = KVRead(slice(None), sight, keys, values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "SCORES_AT_ONCE", scores_at_once)
        memory = OneRead(read)
        found = run("attention", q, None, memory=memory, layer=0, scale=0.5, window=window, softcap=softcap)
    for row in range(len(q)):
        request = row // num_tokens
        for head in range(q.shape[1]):
            kv_head, position = head // num_shared, int(positions.reshape(-1)[row])
            expected = attend_slowly(
                q[row, head] * 0.5, keys[kv_head, request], values[kv_head, request], position, first, window, softcap
            )
            np.testing.assert_allclose(found[row, head], expected, rtol=2e-5, atol=2e-6)
