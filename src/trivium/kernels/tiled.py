"""The NumPy stand-in for native products: every call of the library has one fixed shape per operand.

NumPy's library picks code by shape, so rows are cut into zero-padded tiles; then every row, alone or among hundreds,
goes through the same code. Where the other operand grows too (attention), its columns and the depth are cut into
zero-padded tiles of 64, and depth tiles are added in ascending order.

::

    a [M, K]      tile 0: rows 0..15     tile 1: rows 16..31     …     last tile: rest, then zero rows

Inside one call the library may still treat rows differently by their place: on AVX2 processors OpenBLAS runs 16 rows as
12 + 4, with another order of sums. `row_tile` finds out, and takes the tallest tile whose places are all alike.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from trivium.base.intmath import align_up

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROW_TILES = (16, 8, 4, 1)
COLUMN_TILE = 64
DEPTH_TILE = 64


def _padded(array: NDArray[np.float32], rows: int, cols: int) -> NDArray[np.float32]:
    """Return `array` with its last two axes zero-padded to multiples of `rows` and `cols`, C-contiguous."""
    *batch, num_rows, num_cols = array.shape
    padded = np.zeros((*batch, align_up(num_rows, rows), align_up(num_cols, cols)), np.float32)
    padded[..., :num_rows, :num_cols] = array
    return padded


def row_tile(columns: NDArray[np.float32]) -> int:
    """Return the tallest tile in which the library gives one row the same bits at every place.

    Args:
        columns: [K, N], the other operand of the product. One row is always a tile: it has a single place.
    """
    probe = np.random.default_rng(0).standard_normal((1, columns.shape[0]), np.float32)
    for tile in ROW_TILES[:-1]:
        product = np.repeat(probe, tile, axis=0) @ columns
        if np.array_equal(product, np.broadcast_to(product[0], product.shape), equal_nan=True):
            return tile
    return ROW_TILES[-1]


@cache
def _row_tile_of(depth: int, num_cols: int) -> int:
    """Return `row_tile` for attention's operands, which are known by their tile's shape alone."""
    return row_tile(np.random.default_rng(1).standard_normal((depth, num_cols), np.float32))


def gemm(a: NDArray[np.float32], columns: NDArray[np.float32], out: NDArray[np.float32], *, tile_rows: int) -> None:
    """Write `a @ columns` into `out`; a [M, K], columns [K, N], out [M, N]; `tile_rows` is from `row_tile(columns)`."""
    padded = _padded(a, tile_rows, 1)
    for m in range(0, len(a), tile_rows):
        rows = out[m : m + tile_rows]
        rows[:] = (padded[m : m + tile_rows] @ columns)[: len(rows)]


def matmul_nt(a: NDArray[np.float32], b: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Write `a[i] @ b[i].T` into `out[i]`; a [B, M, K], b [B, N, K], out [B, M, N]."""
    tile_rows = _row_tile_of(a.shape[2], COLUMN_TILE)
    rows = _padded(a, tile_rows, 1)
    columns = _padded(np.swapaxes(b, 1, 2), 1, COLUMN_TILE)
    product = np.empty((len(a), rows.shape[1], columns.shape[2]), np.float32)
    for m in range(0, rows.shape[1], tile_rows):
        for n in range(0, columns.shape[2], COLUMN_TILE):
            tile = np.ascontiguousarray(columns[:, :, n : n + COLUMN_TILE])
            product[:, m : m + tile_rows, n : n + COLUMN_TILE] = np.matmul(rows[:, m : m + tile_rows], tile)
    out[:] = product[:, : out.shape[1], : out.shape[2]]


def matmul_nn(a: NDArray[np.float32], b: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Write `a[i] @ b[i]` into `out[i]`; a [B, M, K], b [B, K, N], out [B, M, N]."""
    tile_rows = _row_tile_of(DEPTH_TILE, b.shape[2])
    rows = _padded(a, tile_rows, DEPTH_TILE)
    columns = _padded(b, DEPTH_TILE, 1)
    product = np.zeros((len(a), rows.shape[1], columns.shape[2]), np.float32)
    for m in range(0, rows.shape[1], tile_rows):
        for k in range(0, rows.shape[2], DEPTH_TILE):
            tile = np.ascontiguousarray(rows[:, m : m + tile_rows, k : k + DEPTH_TILE])
            product[:, m : m + tile_rows] += np.matmul(tile, columns[:, k : k + DEPTH_TILE])
    out[:] = product[:, : out.shape[1]]
