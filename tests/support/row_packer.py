"""A packer whose panels a test can read back: the arrays of a record, row after row, in panels of 32 rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trivium.runtime.packed import PackedSpec
from trivium.weights.kinds import PANEL_FORMATS, Codes
from trivium.weights.quantize import quantize


class RowPacker:
    """Lays a row's arrays side by side, bytes as they are; missing rows of the last panel are zeros."""

    panel_cols = 32

    def __init__(self, layout: str = "rows-1") -> None:
        self.layout = layout

    def panel_bytes(self, format_name: str, depth: int) -> int:
        return self.panel_cols * _row_bytes(format_name, depth)

    def pack(self, codes: Codes) -> np.ndarray:
        by_row = np.concatenate(
            [np.ascontiguousarray(array).view(np.uint8).reshape(codes.num_rows, -1) for array in codes.arrays.values()],
            axis=1,
        )
        missing = -codes.num_rows % self.panel_cols
        return np.pad(by_row, ((0, missing), (0, 0))).reshape(-1)


def unpacked(panels: np.ndarray, spec: PackedSpec) -> Codes:
    """Read a matrix back from its panels."""
    by_row = panels.reshape(-1, _row_bytes(spec.format, spec.depth))[: spec.num_cols]
    record = Codes.empty(spec.format, spec.num_cols, spec.depth)
    start = 0
    for array in record.arrays.values():
        end = start + array.nbytes // spec.num_cols
        array[:] = np.ascontiguousarray(by_row[:, start:end]).view(array.dtype)
        start = end
    return record


class Source:
    """Random matrices, quantized when asked; counts how many rows were."""

    def __init__(self, wanted: Sequence[PackedSpec]) -> None:
        self.values: Mapping[str, np.ndarray] = {
            spec.name: np.random.default_rng(index).standard_normal((spec.num_cols, spec.depth), np.float32)
            for index, spec in enumerate(wanted)
        }
        self.num_rows = 0

    def __call__(self, spec: PackedSpec, start: int, end: int) -> Codes:
        values = self.values[spec.name][start:end]
        record = Codes.empty(spec.format, *values.shape)
        quantize(values, record, where=spec.name)
        self.num_rows += len(values)
        return record


def _row_bytes(format_name: str, depth: int) -> int:
    kind = PANEL_FORMATS[format_name]
    beside = sum(np.dtype(part.dtype).itemsize * part.entries(depth) for part in kind.ingredients.values())
    return np.dtype(kind.code_dtype).itemsize * depth + beside
