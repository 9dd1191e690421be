"""Rows of a product do not depend on each other, at every instruction set and without the native module."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.base.errors import InternalError
from trivium.kernels import gemm as gemm_module
from trivium.kernels import native, tiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

EPS = 2.0**-24


class Product(Protocol):
    """out[..., M, N] from a[..., M, K] and b."""

    def __call__(self, a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]: ...


def _native_isas() -> list[str]:
    module = native.load()
    if module is None:
        return []
    levels = ["scalar", "avx2", "avx512", "avx512vnni", "amx"]
    return levels[: levels.index(module.detected_isa()) + 1]


WAYS = ["numpy", *_native_isas()]


def gemm(way: str, a: NDArray[np.float32], weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Multiply by weight [N, K] on one named way."""
    out = np.full((len(a), len(weight)), np.nan, np.float32)
    if way == "numpy":
        columns = np.array(weight.T, order="C")
        tiled.gemm(a, columns, out, tile_rows=tiled.row_tile(columns))
        return out
    module = native.load()
    assert module is not None
    panels = np.full((-(-len(weight) // 32), weight.shape[1], 32), np.nan, np.float32)
    module.pack(weight, panels)
    module.gemm(a, panels, out, way)
    return out


def batched(way: str, name: str, a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """Run matmul_nt or matmul_nn on one named way."""
    num_cols = b.shape[1 if name == "matmul_nt" else 2]
    out = np.full((*a.shape[:2], num_cols), np.nan, np.float32)
    if way == "numpy":
        getattr(tiled, name)(a, b, out)
    else:
        getattr(native.load(), name)(a, b, out, way)
    return out


def normal(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def assert_close_to_exact(got: NDArray[np.float32], a: NDArray[np.float32], b: NDArray[np.float32]) -> None:
    """Hold the header's bound: K * eps * sum of |a * b|, doubled for the terms of second order."""
    exact = a.astype(np.float64) @ b.astype(np.float64)
    bound = 2 * a.shape[-1] * EPS * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64))
    assert np.all(np.abs(got - exact) <= bound)


sizes = st.integers(1, 100)
seeds = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("way", WAYS)
@given(num_rows=sizes, place=st.integers(0, 99), num_cols=sizes, depth=st.integers(1, 200), seed=seeds)
@settings(deadline=None, max_examples=60)
def test_a_row_has_the_same_bits_wherever_it_stands_among_however_many(
    way: str, num_rows: int, place: int, num_cols: int, depth: int, seed: int
) -> None:
    weight, many = normal(seed, num_cols, depth), normal(seed + 1, num_rows, depth)
    row = normal(seed + 2, 1, depth)
    many[place % num_rows] = row[0]
    alone = gemm(way, row, weight)
    among = gemm(way, many, weight)
    assert np.array_equal(among[place % num_rows], alone[0])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [(576, 576), (96, 1536), (1000, 64)])
def test_rows_keep_their_bits_at_the_widths_of_real_models(way: str, shape: tuple[int, int]) -> None:
    weight, many = normal(1, *shape), normal(2, 37, shape[1])
    together = gemm(way, many, weight)
    for start, end in [(0, 1), (5, 6), (11, 12), (12, 13), (15, 16), (16, 17), (3, 20), (36, 37)]:
        assert np.array_equal(gemm(way, many[start:end], weight), together[start:end])


@pytest.mark.parametrize("way", WAYS)
@given(num_rows=sizes, num_cols=sizes, depth=st.integers(0, 150), seed=seeds)
@settings(deadline=None, max_examples=40)
def test_products_are_within_the_derived_bound(way: str, num_rows: int, num_cols: int, depth: int, seed: int) -> None:
    a, weight = normal(seed, num_rows, depth), normal(seed + 1, num_cols, depth)
    assert_close_to_exact(gemm(way, a, weight), a, weight.T)


@pytest.mark.skipif(len(WAYS) < 3, reason="needs native kernels of two levels")
@given(num_rows=sizes, num_cols=sizes, depth=st.integers(1, 200), seed=seeds)
@settings(deadline=None, max_examples=40)
def test_every_instruction_set_gives_the_same_bits(num_rows: int, num_cols: int, depth: int, seed: int) -> None:
    a, weight = normal(seed, num_rows, depth), normal(seed + 1, num_cols, depth)
    first, *others = [gemm(way, a, weight) for way in WAYS[1:]]
    for other in others:
        assert np.array_equal(other, first)


@pytest.mark.skipif(len(WAYS) < 2, reason="needs native kernels")
def test_an_element_is_one_chain_of_fused_multiply_adds() -> None:
    # 1 + 2^-12 squared needs 25 bits: only an unrounded product survives the subtraction of its rounded value.
    factor = np.float32(1 + 2.0**-12)
    a = np.array([[1, factor]], np.float32)
    weight = np.array([[-np.float32(factor * factor), factor]], np.float32)
    for way in WAYS[1:]:
        assert gemm(way, a, weight)[0, 0] == 2.0**-24


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["matmul_nt", "matmul_nn"])
@given(batch=st.integers(1, 3), num_rows=st.integers(1, 40), num_cols=sizes, depth=sizes, seed=seeds)
@settings(deadline=None, max_examples=30)
def test_batched_rows_do_not_depend_on_each_other(
    way: str, name: str, batch: int, num_rows: int, num_cols: int, depth: int, seed: int
) -> None:
    a = normal(seed, batch, num_rows, depth)
    b = normal(seed + 1, batch, num_cols, depth) if name == "matmul_nt" else normal(seed + 1, batch, depth, num_cols)
    together = batched(way, name, a, b)
    assert_close_to_exact(together, a, np.swapaxes(b, 1, 2) if name == "matmul_nt" else b)
    for row in {0, num_rows // 2, num_rows - 1}:
        last = batched(way, name, a[-1:, row : row + 1], b[-1:])
        assert np.array_equal(last[0, 0], together[-1, row])


@pytest.mark.parametrize("way", WAYS)
@given(length=st.integers(1, 150), more=st.integers(1, 150), seed=seeds)
@settings(deadline=None, max_examples=30)
def test_appended_keys_leave_earlier_scores_alone_and_weights_of_zero_change_no_output(
    way: str, length: int, more: int, seed: int
) -> None:
    queries, keys, values = (
        normal(seed, 1, 5, 24),
        normal(seed + 1, 1, length + more, 24),
        normal(seed + 2, 1, length + more, 24),
    )
    scores = batched(way, "matmul_nt", queries, keys)
    short = batched(way, "matmul_nt", queries, keys[:, :length])
    assert np.array_equal(scores[..., :length], short)
    masked = np.where(np.arange(length + more) < length, scores, np.float32(0))
    assert np.array_equal(
        batched(way, "matmul_nn", masked, values), batched(way, "matmul_nn", short, values[:, :length])
    )


@pytest.mark.skipif(len(WAYS) < 2, reason="needs native kernels")
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_the_number_of_threads_changes_no_bit(threads: int) -> None:
    module = native.load()
    assert module is not None
    before = module.num_threads()
    a, weight = normal(1, 65, 300), normal(2, 1000, 300)
    expected = gemm(WAYS[-1], a, weight)
    try:
        native.set_num_threads(threads)
        assert module.num_threads() == threads
        assert np.array_equal(gemm(WAYS[-1], a, weight), expected)
    finally:
        native.set_num_threads(before)


def test_views_with_strides_give_the_bits_of_their_copies() -> None:
    store = normal(3, 40, 6, 48)
    heads = np.swapaxes(store, 0, 1)
    queries, keys = heads[:, :7, 8:32], heads[:, :, 8:32]
    scores = gemm_module.matmul_nt(queries, keys)
    assert np.array_equal(scores, gemm_module.matmul_nt(queries.copy(), keys.copy()))
    values = heads[:, :, ::2]
    assert np.array_equal(gemm_module.matmul_nn(scores, values), gemm_module.matmul_nn(scores, values.copy()))
    repeated = np.broadcast_to(keys[:1], keys.shape)
    assert np.array_equal(gemm_module.matmul_nt(queries, repeated), gemm_module.matmul_nt(queries, repeated.copy()))


def test_results_go_into_out_when_it_is_given() -> None:
    a, packed = normal(1, 2, 3, 8), gemm_module.pack(normal(2, 5, 8))
    out = np.zeros((2, 3, 5), np.float32)
    assert gemm_module.gemm(a, packed, out=out) is out
    assert np.array_equal(out, gemm_module.gemm(a, packed))
    wide = np.zeros((2, 3, 9), np.float32)
    assert np.array_equal(gemm_module.matmul_nt(a, a, out=wide[..., 1:4]), gemm_module.matmul_nt(a, a))
    assert not wide[..., 4:].any()


def test_no_rows_and_no_columns_are_products_too() -> None:
    assert gemm_module.gemm(normal(1, 0, 8), gemm_module.pack(normal(2, 5, 8))).shape == (0, 5)
    assert gemm_module.gemm(normal(1, 3, 8), gemm_module.pack(normal(2, 0, 8))).shape == (3, 0)
    assert not gemm_module.matmul_nn(normal(1, 2, 3, 0), normal(2, 2, 0, 4)).any()
    assert gemm_module.matmul_nt(normal(1, 0, 3, 4), normal(2, 0, 5, 4)).shape == (0, 3, 5)


def test_wrong_shapes_are_refused_with_both_sizes() -> None:
    packed = gemm_module.pack(normal(1, 5, 8))
    with pytest.raises(InternalError, match="a has K=7 but the weight has K=8"):
        gemm_module.gemm(normal(2, 3, 7), packed)
    with pytest.raises(InternalError, match="float64, not float32"):
        gemm_module.gemm(np.zeros((3, 8)), packed)  # type: ignore[arg-type]
    with pytest.raises(InternalError, match="b has K=6 but a has K=5"):
        gemm_module.matmul_nt(normal(1, 2, 3, 5), normal(2, 2, 4, 6))
    with pytest.raises(InternalError, match=r"out has shape \(3, 4\)"):
        gemm_module.gemm(normal(2, 3, 8), packed, out=np.zeros((3, 4), np.float32))


@pytest.mark.skipif(len(WAYS) < 2, reason="needs native kernels")
def test_the_native_module_itself_refuses_what_would_read_past_an_array() -> None:
    module = native.load()
    assert module is not None
    a, panels, out = normal(1, 3, 8), normal(2, 1, 8, 32), np.zeros((3, 5), np.float32)
    with pytest.raises(ValueError, match="a has K=7 but panels has K=8"):
        module.gemm(a[:, :7].copy(), panels, out)
    with pytest.raises(ValueError, match="1 panels given; N=33 takes 2"):
        module.gemm(a, panels, np.zeros((3, 33), np.float32))
    with pytest.raises(ValueError, match="out has M=2 but a has M=3"):
        module.gemm(a, panels, out[:2])
    with pytest.raises(ValueError, match="stride -"):
        module.gemm(a[::-1], panels, out)
    with pytest.raises(ValueError, match="'sse9' is unknown"):
        module.gemm(a, panels, out, "sse9")


LAW = """
import numpy as np
from trivium.kernels import gemm, native
assert native.describe().is_present is False
for depth, cols in [(64, 16), (576, 33), (96, 576)]:
    rng = np.random.default_rng(depth)
    many = rng.standard_normal((21, depth), np.float32)
    packed = gemm.pack(rng.standard_normal((cols, depth), np.float32))
    together = gemm.gemm(many, packed)
    for place in range(21):
        assert np.array_equal(gemm.gemm(many[place:place + 1], packed)[0], together[place]), (depth, cols, place)
"""


@pytest.mark.parametrize("core", ["Haswell", "SkylakeX", "Nehalem"])
def test_the_numpy_stand_in_keeps_the_law_on_other_processors_code_paths(core: str) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TRIVIUM_")}
    environment = {**clean, "TRIVIUM_ISA": "numpy", "OPENBLAS_CORETYPE": core}
    subprocess.run([sys.executable, "-c", LAW], check=True, env=environment, timeout=60)  # noqa: S603
