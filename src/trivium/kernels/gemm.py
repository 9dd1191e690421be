"""Matrix products in float32 whose rows do not depend on each other.

The law of this module: the bits of one output row depend on that row of `a`, on the other operand, and on nothing
else: not on how many rows there are, which row it is, what the neighbours hold, or how many threads run. For
`matmul_nt` the same holds per column (so keys may be appended), and for `matmul_nn` zeros may be appended to the
depth. NumPy's own product keeps none of this: its library chooses other code for one row than for two.

Native: one chain of fused multiply-adds per output element, depth ascending, at every instruction set. NumPy stand-in:
see `kernels.tiled`. The two differ in the last bits, and a process uses one of them throughout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trivium.base.errors import ensure
from trivium.base.intmath import ceil_div
from trivium.kernels import native, tiled
from trivium.kernels.spec import Shapes

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedMatrix:
    """A weight [N, K] in the layout the product reads it in; made by `pack`, never changed."""

    num_cols: int
    """N: columns of the product, rows of the weight."""
    depth: int
    """K: length of the sums."""
    layout: NDArray[np.float32]
    """Native: panels [ceil(N / 32), K, 32], drawn in csrc/ops/gemm/pack.h. NumPy: the weight transposed, [K, N]."""
    tile_rows: int
    """Rows that the NumPy stand-in runs at a time; 0 for the native layout, which needs no such choice."""


def _aligned_empty(*shape: int) -> NDArray[np.float32]:
    """Return an uninitialised float32 array that begins on a cache line."""
    num_bytes = 4 * math.prod(shape)
    buffer = np.empty(num_bytes + _ALIGNMENT_BYTES, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT_BYTES
    return buffer[start : start + num_bytes].view(np.float32).reshape(shape)


def _dense(array: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return `array`, copied only if its last axis has gaps."""
    return array if array.strides[-1] == array.itemsize else np.ascontiguousarray(array)


def _output(op: str, out: NDArray[np.float32] | None, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return `out` after a check, or a new array."""
    if out is None:
        return np.empty(shape, np.float32)
    ensure(out.shape == shape, f"{op}: out has shape {out.shape}, not {shape}")
    ensure(out.dtype == np.float32 and out.flags.writeable, f"{op}: out is not a writable float32 array")
    return out


def pack(weight: NDArray[np.float32]) -> PackedMatrix:
    """Copy a weight into the layout of `gemm`.

    Args:
        weight: [N, K] float32. It may be a memory map, and is not referenced afterwards.

    Raises:
        InternalError: `weight` is not a float32 matrix.
    """
    sizes = Shapes("pack").match("weight", weight, "N K")
    num_cols, depth = sizes["N"], sizes["K"]
    module = native.load()
    if module is None:
        columns = np.array(weight.T, order="C")
        return PackedMatrix(num_cols=num_cols, depth=depth, layout=columns, tile_rows=tiled.row_tile(columns))
    panels = _aligned_empty(ceil_div(num_cols, module.PANEL_WIDTH), depth, module.PANEL_WIDTH)
    module.pack(_dense(weight), panels)
    return PackedMatrix(num_cols=num_cols, depth=depth, layout=panels, tile_rows=0)


def unpack_rows(packed: PackedMatrix, ids: NDArray[np.integer]) -> NDArray[np.float32]:
    """Copy rows of a packed weight, so that a tied embedding need not be kept twice.

    Args:
        packed: The weight [N, K].
        ids: [T] rows, each below N.

    Returns:
        [T, K] float32, the same bits that were packed.
    """
    if packed.tile_rows:
        return np.ascontiguousarray(packed.layout[:, ids].T)
    panels: NDArray[np.float32] = packed.layout
    width = panels.shape[2]
    return np.ascontiguousarray(panels[ids // width, :, ids % width])


def gemm(
    a: NDArray[np.float32], packed: PackedMatrix, *, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Multiply rows by a packed weight: `out[..., m, n] = sum over k of a[..., m, k] * weight[n, k]`.

    Args:
        a: [..., M, K] float32.
        packed: The weight [N, K].
        out: [..., M, N] float32, C-contiguous, overlapping neither operand; given, no result is allocated.

    Returns:
        [..., M, N] float32: `out`, or a new array.

    Raises:
        InternalError: Shapes or dtypes do not fit, or `out` has gaps.
    """
    out = _output("gemm", out, (*a.shape[:-1], packed.num_cols))
    ensure(out.flags.c_contiguous, "gemm: out is not C-contiguous")
    rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
    out_rows = out.reshape(len(rows), packed.num_cols)
    depth = Shapes("gemm").match("a", rows, "M K")["K"]
    ensure(depth == packed.depth, f"gemm: a has K={depth} but the weight has K={packed.depth}")
    module = native.load()
    if module is None:
        tiled.gemm(rows, packed.layout, out_rows, tile_rows=packed.tile_rows)
    else:
        module.gemm(_dense(rows), packed.layout, out_rows)
    return out


def matmul_nt(
    a: NDArray[np.float32], b: NDArray[np.float32], *, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Multiply with a transposed operand: `out[i, m, n] = sum over k of a[i, m, k] * b[i, n, k]`. For scores.

    An element depends on its row of `a` and, given where it stands, its row of `b`: rows may be appended to either.

    Args:
        a: [B, M, K] float32; any strides, 0 included.
        b: [B, N, K] float32; any strides, 0 included.
        out: [B, M, N] float32, dense in N, overlapping neither operand.

    Returns:
        [B, M, N] float32: `out`, or a new array.

    Raises:
        InternalError: Shapes or dtypes do not fit.
    """
    sizes = Shapes("matmul_nt").match("a", a, "B M K").match("b", b, "B N K")
    out = _output("matmul_nt", out, (sizes["B"], sizes["M"], sizes["N"]))
    module = native.load()
    if module is None:
        tiled.matmul_nt(a, b, out)
    else:
        module.matmul_nt(_dense(a), _dense(b), out)
    return out


def matmul_nn(
    a: NDArray[np.float32], b: NDArray[np.float32], *, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Multiply matrix by matrix: `out[i, m, n] = sum over k of a[i, m, k] * b[i, k, n]`. For weights times values.

    Depth may be padded: where `a` is zero and `b` finite, longer sums have the same bits.

    Args:
        a: [B, M, K] float32; any strides, 0 included.
        b: [B, K, N] float32; any strides, 0 included.
        out: [B, M, N] float32, dense in N, overlapping neither operand.

    Returns:
        [B, M, N] float32: `out`, or a new array.

    Raises:
        InternalError: Shapes or dtypes do not fit.
    """
    sizes = Shapes("matmul_nn").match("a", a, "B M K").match("b", b, "B K N")
    out = _output("matmul_nn", out, (sizes["B"], sizes["M"], sizes["N"]))
    module = native.load()
    if module is None:
        tiled.matmul_nn(a, b, out)
    else:
        module.matmul_nn(_dense(a), _dense(b), out)
    return out
