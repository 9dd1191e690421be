"""Times single products in the native executor, on weights of random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trivium.base.intmath import ceil_div
from trivium.compile.tuner.case_plan import VOCAB_SIZE, case_plan
from trivium.compile.tuner.space import Case, with_tactics
from trivium.kernels import linear
from trivium.plan.tactic import KERNELS
from trivium.runtime.lower import Matrix
from trivium.runtime.native import NativeExecutor, NativeWeights, aligned_zeros
from trivium.runtime.rehearsal import Part, build_step
from trivium.weights.kinds import PANEL_FORMATS, Codes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivium.plan.program import Plan, Weight

_COLD_BYTES = 64 << 20
"""Of different weights, so that none is in cache when its turn comes again."""
_FEW_ROWS = 16
"""Up to here reading weights is what takes the time; beyond, two copies do."""
_MOST_COPIES = 256
_NEVER_UNPACKED = frozenset({"f32", "bf16", "f16", "i8_c", "i8_g32", "i8_g64", "i8_g128"})
"""Formats whose codes are bytes or numbers already: unpacking is the same as not unpacking."""


class ProductBench:
    """See `compile.tuner.measure.Bench`."""

    def prepare(self, case: Case) -> PreparedProduct:
        """Make weights and one executor per tactic."""
        return PreparedProduct(case)


class PreparedProduct:
    """One case, see `compile.tuner.measure.PreparedCase`."""

    def __init__(self, case: Case) -> None:
        num_copies = _num_copies(case)
        plan = case_plan(case, num_copies)
        weights = _random_weights(plan)
        self.tactics: tuple[str, ...] = KERNELS if set(case.site.formats) - _NEVER_UNPACKED else KERNELS[:1]
        tuned = {name: with_tactics(plan, {case: name}) for name in self.tactics}
        self._executors = {name: NativeExecutor(tuned[name], weights, ()) for name in self.tactics}
        tokens = np.arange(case.num_rows, dtype=np.int32) % VOCAB_SIZE
        self._step = build_step([Part(tokens=tokens, start=0, end=case.num_rows, first_page=0)], plan.kv.spec)
        self._products = slice(len(plan.programs["base"].instructions) - num_copies, None)

    def result(self, tactic: str) -> NDArray[np.float32]:
        """Return what the product with the last weights gives."""
        return self._executors[tactic].trace(self._step)[-1]["out"]

    def seconds(self, tactic: str) -> float:
        """Return the mean over all copies of the weights."""
        return float(np.mean(self._executors[tactic].timed(self._step)[self._products]))


def _num_copies(case: Case) -> int:
    if case.num_rows > _FEW_ROWS:
        return 2
    pairs = zip(case.site.formats, case.site.columns, strict=True)
    num_bytes = sum(linear.matrix_bytes(form, columns, case.site.depth) for form, columns in pairs)
    return min(_MOST_COPIES, max(2, ceil_div(_COLD_BYTES, num_bytes)))


def _random_weights(plan: Plan) -> NativeWeights:
    rng = np.random.default_rng(0)
    shapes: dict[tuple[str, tuple[int, ...]], NDArray[np.uint8]] = {}
    matrices: dict[str, Matrix] = {}
    vectors: dict[str, NDArray[np.float32]] = {}
    for weight in plan.weights:
        if len(weight.shape) == 1:
            vectors[weight.name] = np.ones(weight.shape, np.float32)
            continue
        key = (weight.format, weight.shape)
        if key not in shapes:
            shapes[key] = _panel(weight, rng)
        num_cols, depth = weight.shape
        panels = _repeated(shapes[key], linear.matrix_bytes(weight.format, num_cols, depth))
        matrices[weight.name] = Matrix(format=weight.format, panels=panels, num_cols=num_cols, depth=depth)
    return NativeWeights(matrices=matrices, vectors=vectors)


def _panel(weight: Weight, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Pack one panel of random numbers: enough of them for timing, and quick to make."""
    packer = linear.Packer()
    return packer.pack(random_codes(weight.format, packer.panel_cols, weight.shape[1], rng))


def _repeated(panel: NDArray[np.uint8], num_bytes: int) -> NDArray[np.uint8]:
    out = aligned_zeros(num_bytes)
    out.reshape(-1, len(panel))[:] = panel
    return out


def random_codes(form: str, num_rows: int, depth: int, rng: np.random.Generator) -> Codes:
    """Draw a record whose values are finite and of ordinary size."""
    record = Codes.empty(form, num_rows, depth)
    kind = PANEL_FORMATS[form]
    bits = {"codes": kind.code_bits} | {name: part.bits for name, part in kind.ingredients.items()}
    for name, array in record.arrays.items():
        array[:] = _draw(array.dtype, bits[name], array.shape, rng, is_bf16=form == "bf16")
    return record


def _draw(dtype: Any, bits: int, shape: tuple[int, ...], rng: np.random.Generator, *, is_bf16: bool) -> NDArray[Any]:
    numbers = rng.standard_normal(shape).astype(np.float32) * np.float32(0.05)
    if is_bf16:
        return (numbers.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    if np.issubdtype(dtype, np.floating):
        return numbers.astype(dtype)
    if np.issubdtype(dtype, np.signedinteger):
        return rng.integers(-(1 << (bits - 1)), 1 << (bits - 1), shape).astype(dtype)
    return rng.integers(0, 1 << bits, shape).astype(dtype)
