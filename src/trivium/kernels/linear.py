"""Packed weights: the formats that native products multiply with, and how a record of codes becomes panels.

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


def _bytes_view(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array under a type that crosses the border: float16 as uint16."""
    return array.view(np.uint16) if array.dtype == np.float16 else array
