"""Packed weights: the formats that native products multiply with, how a record becomes panels, and products.

What a record holds is said where records are made (`weights.kinds`); csrc/ops/linear draws the panels.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trivium.base.errors import InternalError, ensure
from trivium.base.intmath import ceil_div
from trivium.kernels import native

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


class Record(Protocol):
    """A matrix [N, K] as codes and scales, unpacked."""

    @property
    def format(self) -> str:
        """Name of the format."""
        ...

    @property
    def num_rows(self) -> int:
        """N."""
        ...

    @property
    def depth(self) -> int:
        """K."""
        ...

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Its arrays by name, `codes` among them."""
        ...


def _module() -> Any:
    module = native.load()
    if module is None:
        raise InternalError("packed weights need the native kernels, which are not here")
    return module


def formats() -> tuple[str, ...]:
    """Return the names of all formats."""
    return tuple(_module().weight_formats())


@cache
def panel_bytes(format_name: str, depth: int) -> int:
    """Return the size of a panel over `depth` values of k.

    Raises:
        InternalError: The format is unknown.
    """
    ensure(format_name in formats(), f"no weight format {format_name!r}; known are: {', '.join(formats())}")
    return int(_module().panel_bytes(format_name, depth))


def matrix_bytes(format_name: str, num_cols: int, depth: int) -> int:
    """Return the size of a packed matrix [N, K]."""
    return ceil_div(num_cols, _module().PANEL_COLUMNS) * panel_bytes(format_name, depth)


class Packer:
    """Lays records out in panels; see `runtime.packed_file.Packer`."""

    @property
    def layout(self) -> str:
        """Identity of the layout: panels of equal layouts have equal bytes on every instruction set."""
        return f"panels-2/{_module().PANEL_COLUMNS}"

    @property
    def panel_cols(self) -> int:
        """Columns of a panel: rows of a record that go into one."""
        return int(_module().PANEL_COLUMNS)

    def panel_bytes(self, format_name: str, depth: int) -> int:
        """Return the size of a panel over `depth` values of k."""
        return panel_bytes(format_name, depth)

    def pack(self, codes: Record) -> NDArray[np.uint8]:
        """Return the panels of a record's rows, back to back.

        Raises:
            InternalError: The record is not what its format says.
        """
        out = np.empty(matrix_bytes(codes.format, codes.num_rows, codes.depth), np.uint8)
        arrays = {name: _bytes_view(array) for name, array in codes.arrays.items()}
        try:
            _module().pack_codes(codes.format, out=out, **arrays)
        except ValueError as error:
            raise InternalError(str(error)) from None
        return out


def unpack_rows(
    format_name: str, panels: NDArray[np.uint8], num_cols: int, depth: int, ids: NDArray[np.integer]
) -> NDArray[np.float32]:
    """Return rows of a packed matrix [N, K] exactly as its format defines them.

    Args:
        format_name: One of `formats()`.
        panels: What `Packer.pack` returns.
        num_cols: N.
        depth: K.
        ids: [T] rows, each below N.

    Returns:
        [T, K] float32.

    Raises:
        InternalError: The panels have another size, or an id is not a row.
    """
    out = np.empty((len(ids), depth), np.float32)
    try:
        _module().unpack_rows(format_name, panels, num_cols, np.ascontiguousarray(ids, np.int64), out)
    except ValueError as error:
        raise InternalError(str(error)) from None
    return out


def multiply(
    x: NDArray[np.float32], format_name: str, panels: NDArray[np.uint8], num_cols: int, *, isa: str | None = None
) -> NDArray[np.float32]:
    """Multiply rows by a packed matrix: `out[m, n] = sum over k of x[m, k] * W[n, k]`.

    `x` is rounded to the format's operand first: int8 with a scale per 32 values where weights have codes, bfloat16
    where they are bfloat16.

    Args:
        x: [M, K] float32, C-contiguous.
        format_name: One of `formats()`.
        panels: What `Packer.pack` returns.
        num_cols: N.
        isa: Instruction set to use instead of the active one.

    Returns:
        [M, N] float32.

    Raises:
        InternalError: The panels have another size, or the processor lacks `isa`.
    """
    out = np.empty((len(x), num_cols), np.float32)
    try:
        _module().multiply(x, format_name, panels, out, isa)
    except ValueError as error:
        raise InternalError(str(error)) from None
    return out


def _bytes_view(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array under a type that crosses the border: float16 as uint16."""
    return array.view(np.uint16) if array.dtype == np.float16 else array
