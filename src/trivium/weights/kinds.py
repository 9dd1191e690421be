"""The formats that packed weights have, and the record that carries a matrix to the packer: `Codes`.

A record holds integer codes and what they are scaled by, unpacked: one array per ingredient, one row per output. It is
what the checkpoint says, not what a kernel reads; the kernels' packer lays it out in panels (csrc/ops/linear/format.h
draws them, and this table says the same of values). `dequantize` is the meaning, in float32, operation by operation.

::

    name        code     scaled by                                            value of code c
    f32, bf16   number                                                        c
    f16         number                                                        c
    i8_c        u8       scales f32, one per row                              (c - 128) * d
    i8_g*       u8       scales f16                                           (c - 128) * d
    i4_g32      u4       scales f16                                           (c - 8) * d
    i4m_g32     u4       scales f16, mins f16                                 c * d + m
    i4z_g*      u4       scales f16, zeros u8 (0 .. 15)                       (c - z) * d
    i5_g32      u5       scales f16                                           (c - 16) * d
    i5m_g32     u5       scales f16, mins f16                                 c * d + m
    q2_k        u2       supers f16 x subs u4, super_mins f16 x sub_mins u4   c * (d * s) - dm * m       groups of 16
    q3_k        u3       supers f16 x subs i6                                 (c - 4) * (d * s)          groups of 16
    q4_k        u4       supers f16 x subs u6, super_mins f16 x sub_mins u6   c * (d * s) - dm * m       groups of 32
    q5_k        u5       as q4_k                                              c * (d * s) - dm * m       groups of 32
    q6_k        u6       supers f16 x subs i8                                 (c - 32) * (d * s)         groups of 16
    iq4         u4       scales f16, a codebook                               CODEBOOK[c] * d

All products of q4_k and its kin are exact in float32, so only the last addition rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trivium.base.errors import ensure
from trivium.base.intmath import ceil_div
from trivium.weights.blocks import CODEBOOK

_CHUNK_ELEMENTS = 1 << 18


@dataclass(frozen=True, slots=True)
class Ingredient:
    """An array of a record beside the codes: one entry per `span` values of a row, or per row where `span` is 0."""

    dtype: DTypeLike
    span: int
    bits: int
    """That an entry needs in a packed panel."""

    def entries(self, depth: int) -> int:
        """Return how many entries a row of `depth` values has; the last may cover fewer values."""
        return ceil_div(depth, self.span) if self.span else 1


@dataclass(frozen=True, slots=True)
class PanelFormat:
    """A storage format of packed weights."""

    name: str
    code_dtype: DTypeLike
    code_bits: int
    zero: int = 0
    """Subtracted from a code before it is scaled."""
    ingredients: Mapping[str, Ingredient] = field(default_factory=dict)

    def bits_per_weight(self, depth: int) -> float:
        """Return bits per value of rows of `depth` values, scales included."""
        beside = sum(part.bits * part.entries(depth) for part in self.ingredients.values())
        return self.code_bits + beside / depth


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Codes:
    """A matrix [N, K] in a panel format, or some rows of one.

    Invariants:
        Exactly the arrays that the format has are present, C-contiguous, of the table's dtypes, with one row per row
        of `codes`.
    """

    format: str
    """Key of `PANEL_FORMATS`."""
    codes: NDArray[Any]
    """[N, K]: uint8; float32 for f32, uint16 for bf16, float16 for f16."""
    scales: NDArray[Any] | None = None
    mins: NDArray[Any] | None = None
    zeros: NDArray[Any] | None = None
    supers: NDArray[Any] | None = None
    subs: NDArray[Any] | None = None
    super_mins: NDArray[Any] | None = None
    sub_mins: NDArray[Any] | None = None

    @classmethod
    def empty(cls, format_name: str, num_rows: int, depth: int) -> Self:
        """Return a record whose arrays have their shapes and no values yet."""
        kind = PANEL_FORMATS[format_name]
        beside = {
            name: np.empty((num_rows, part.entries(depth)), part.dtype) for name, part in kind.ingredients.items()
        }
        return cls(format=format_name, codes=np.empty((num_rows, depth), kind.code_dtype), **beside)

    @property
    def num_rows(self) -> int:
        """Rows: N, outputs."""
        return len(self.codes)

    @property
    def depth(self) -> int:
        """Values of a row: K."""
        return int(self.codes.shape[1])

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """The arrays that are present, by name, `codes` first."""
        found = {each.name: getattr(self, each.name) for each in fields(self)[1:]}
        return {name: array for name, array in found.items() if array is not None}

    def part(self, start: int, end: int) -> Self:
        """Return rows [start, end), sharing memory."""
        return type(self)(format=self.format, **{name: array[start:end] for name, array in self.arrays.items()})

    def check(self) -> None:
        """Check the invariants.

        Raises:
            InternalError: One does not hold.
        """
        expected = type(self).empty(self.format, 0, self.depth).arrays
        ensure(expected.keys() == self.arrays.keys(), f"{self.format} has {[*self.arrays]}, not {[*expected]}")
        for name, array in self.arrays.items():
            shape = (self.num_rows, *expected[name].shape[1:])
            fits = array.shape == shape and array.dtype == expected[name].dtype and array.flags.c_contiguous
            ensure(fits, f"{self.format}: {name} is {array.dtype}{list(array.shape)}, not C-contiguous {list(shape)}")


def dequantize(record: Codes) -> NDArray[np.float32]:
    """Return the values that a record means, [N, K] float32, computed as the table of this module says."""
    out = np.empty(record.codes.shape, np.float32)
    step = max(1, _CHUNK_ELEMENTS // max(1, record.depth))
    for start in range(0, record.num_rows, step):
        with np.errstate(invalid="ignore", over="ignore"):  # NaN and infinity stay what they are
            _fill(record.part(start, start + step), out[start : start + step])
    return out


def _fill(record: Codes, out: NDArray[np.float32]) -> None:
    if record.format in {"f32", "f16"}:
        out[:] = record.codes
        return
    if record.format == "bf16":
        np.left_shift(record.codes, np.uint32(16), out=out.view(np.uint32), dtype=np.uint32)
        return
    if record.format == "iq4":
        np.take(CODEBOOK, record.codes, out=out, mode="clip")
    else:
        zero = np.float32(PANEL_FORMATS[record.format].zero)
        np.subtract(record.codes, zero if record.zeros is None else _spread(record, "zeros"), out=out)
    np.multiply(
        out, _product(record, "supers", "subs") if record.scales is None else _spread(record, "scales"), out=out
    )
    if record.mins is not None:
        np.add(out, _spread(record, "mins"), out=out)
    if record.super_mins is not None:
        np.subtract(out, _product(record, "super_mins", "sub_mins"), out=out)


def _spread(record: Codes, name: str) -> NDArray[np.float32]:
    """Return one entry of an ingredient per value, [N, K] or [N, 1]."""
    span = PANEL_FORMATS[record.format].ingredients[name].span
    entries = record.arrays[name].astype(np.float32)
    return np.repeat(entries, span, axis=1)[:, : record.depth] if span else entries


def _product(record: Codes, outer: str, inner: str) -> NDArray[np.float32]:
    return _spread(record, outer) * _spread(record, inner)


def _scales(span: int, **others: Ingredient) -> dict[str, Ingredient]:
    return {"scales": Ingredient(np.float16, span, 16), **others}


def _supers(span: int, sub_dtype: DTypeLike, sub_bits: int, *, has_minima: bool = False) -> dict[str, Ingredient]:
    scale = {"supers": Ingredient(np.float16, 256, 16), "subs": Ingredient(sub_dtype, span, sub_bits)}
    if not has_minima:
        return scale
    return scale | {"super_mins": Ingredient(np.float16, 256, 16), "sub_mins": Ingredient(np.uint8, span, sub_bits)}


_MINS = Ingredient(np.float16, 32, 16)
PANEL_FORMATS: Mapping[str, PanelFormat] = {
    kind.name: kind
    for kind in (
        PanelFormat("f32", np.float32, 32),
        PanelFormat("bf16", np.uint16, 16),
        PanelFormat("f16", np.float16, 16),
        PanelFormat("i8_c", np.uint8, 8, 128, {"scales": Ingredient(np.float32, 0, 32)}),
        *(PanelFormat(f"i8_g{span}", np.uint8, 8, 128, _scales(span)) for span in (32, 64, 128)),
        PanelFormat("i4_g32", np.uint8, 4, 8, _scales(32)),
        PanelFormat("i4m_g32", np.uint8, 4, 0, _scales(32, mins=_MINS)),
        *(
            PanelFormat(f"i4z_g{span}", np.uint8, 4, 0, _scales(span, zeros=Ingredient(np.uint8, span, 8)))
            for span in (32, 64, 128)
        ),
        PanelFormat("i5_g32", np.uint8, 5, 16, _scales(32)),
        PanelFormat("i5m_g32", np.uint8, 5, 0, _scales(32, mins=_MINS)),
        PanelFormat("q2_k", np.uint8, 2, 0, _supers(16, np.uint8, 4, has_minima=True)),
        PanelFormat("q3_k", np.uint8, 3, 4, _supers(16, np.int8, 6)),
        PanelFormat("q4_k", np.uint8, 4, 0, _supers(32, np.uint8, 6, has_minima=True)),
        PanelFormat("q5_k", np.uint8, 5, 0, _supers(32, np.uint8, 6, has_minima=True)),
        PanelFormat("q6_k", np.uint8, 6, 32, _supers(16, np.int8, 8)),
        PanelFormat("iq4", np.uint8, 4, 0, _scales(32)),
    )
}
"""Every panel format, by name."""


def scale_span(name: str) -> int:
    """Return how many values along K share a scale in a panel format, at the least; 0: a whole row, or none does."""
    return min((each.span for each in PANEL_FORMATS[name].ingredients.values()), default=0)
