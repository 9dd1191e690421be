"""The NumPy stand-in for native products: every call of the library has one fixed shape per operand.

NumPy's library picks code by shape, so rows are cut into zero-padded tiles of 16; then every row, alone or among
hundreds, goes through the same code. Where the other operand grows too (attention), its columns and the depth are cut
into zero-padded tiles of 64, and depth tiles are added in ascending order. That rows of a tile do not depend on each
other is a property of the library that no document promises: a property test holds it.

::

    a [M, K]      tile 0: rows 0..15     tile 1: rows 16..31     …     last tile: rest, then zero rows
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trivium.base.intmath import align_up

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROW_TILE = 16
COLUMN_TILE = 64
DEPTH_TILE = 64


def _padded(array: NDArray[np.float32], rows: int, cols: int) -> NDArray[np.float32]:
    """Return `array` with its last two axes zero-padded to multiples of `rows` and `cols`, C-contiguous."""
    *batch, num_rows, num_cols = array.shape
    padded = np.zeros((*batch, align_up(num_rows, rows), align_up(num_cols, cols)), np.float32)
    padded[..., :num_rows, :num_cols] = array
    return padded


def gemm(a: NDArray[np.float32], columns: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Write `a @ columns` into `out`; a [M, K], columns [K, N], out [M, N]."""
    tiles = _padded(a, ROW_TILE, 1).reshape(-1, ROW_TILE, a.shape[1])
    product = np.empty((ROW_TILE, columns.shape[1]), np.float32)
    for index, tile in enumerate(tiles):
        np.matmul(tile, columns, out=product)
        rows = out[index * ROW_TILE : (index + 1) * ROW_TILE]
        rows[:] = product[: len(rows)]


def matmul_nt(a: NDArray[np.float32], b: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Write `a[i] @ b[i].T` into `out[i]`; a [B, M, K], b [B, N, K], out [B, M, N]."""
    rows = _padded(a, ROW_TILE, 1)
    columns = _padded(np.swapaxes(b, 1, 2), 1, COLUMN_TILE)
    product = np.empty((len(a), rows.shape[1], columns.shape[2]), np.float32)
    for m in range(0, rows.shape[1], ROW_TILE):
        for n in range(0, columns.shape[2], COLUMN_TILE):
            tile = np.ascontiguousarray(columns[:, :, n : n + COLUMN_TILE])
            product[:, m : m + ROW_TILE, n : n + COLUMN_TILE] = np.matmul(rows[:, m : m + ROW_TILE], tile)
    out[:] = product[:, : out.shape[1], : out.shape[2]]


def matmul_nn(a: NDArray[np.float32], b: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Write `a[i] @ b[i]` into `out[i]`; a [B, M, K], b [B, K, N], out [B, M, N]."""
    rows = _padded(a, ROW_TILE, DEPTH_TILE)
    columns = _padded(b, DEPTH_TILE, 1)
    product = np.zeros((len(a), rows.shape[1], columns.shape[2]), np.float32)
    for m in range(0, rows.shape[1], ROW_TILE):
        for k in range(0, rows.shape[2], DEPTH_TILE):
            tile = np.ascontiguousarray(rows[:, m : m + ROW_TILE, k : k + DEPTH_TILE])
            product[:, m : m + ROW_TILE] += np.matmul(tile, columns[:, k : k + DEPTH_TILE])
    out[:] = product[:, : out.shape[1]]
