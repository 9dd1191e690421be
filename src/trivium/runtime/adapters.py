"""Low-rank adapters at run time: what one is, whether it fits a model, and what those of a step add to a product.

::

    step.adapter_slot   [ 0        | -1 | 2         ]      per request; -1: none
    rows of the step    | r r r r  | r  | r r r     |
    delta               | adapter 0| -0 | adapter 2 |      scale * B (A x), row by row

Executors keep adapters in numbered slots. Loading and unloading happen between steps; a plan knows nothing of them but
the products that they may add to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trivium.base.errors import CheckpointError, ensure

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivium.runtime.arrays import Library, Matrix
    from trivium.schedule.step import Step


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to the product with one parameter [N, K]: scale * B (A x)."""

    a: NDArray[Any]
    """[r, K], any floating type; kept as float32."""
    b: NDArray[Any]
    """[N, r]."""
    scale: float
    """Alpha over rank, in most files."""


Adapter = Mapping[str, LowRank]
"""Parameter to what is added to its product; ranks may differ, and parameters may be left out."""

Shapes = Mapping[str, tuple[int, int]]
"""Every parameter that adapters may add to, and its shape [N, K]."""


def fitted(adapter: Adapter, shapes: Shapes) -> dict[str, LowRank]:
    """Return an adapter with contiguous float32 matrices.

    Args:
        adapter: What to check.
        shapes: Of the model.

    Raises:
        CheckpointError: It is empty, adds to a parameter that the model does not multiply by, or has matrices of
            another shape or with numbers that are not finite.
    """
    if not adapter:
        raise CheckpointError("the adapter adds to no parameter")
    found = {}
    for name, given in adapter.items():
        if name not in shapes:
            raise CheckpointError(f"the adapter adds to {name}, which is no matrix that this model multiplies by")
        a, b = (np.ascontiguousarray(each, np.float32) for each in (given.a, given.b))
        num_cols, depth = shapes[name]
        rank = len(a) if a.ndim else 0
        if rank < 1 or a.shape != (rank, depth) or b.shape != (num_cols, rank):
            raise CheckpointError(
                f"the adapter's A {list(a.shape)} and B {list(b.shape)} do not fit {name} {[num_cols, depth]}: they "
                f"must be [r, {depth}] and [{num_cols}, r]"
            )
        if not (np.isfinite(a).all() and np.isfinite(b).all() and np.isfinite(given.scale)):
            raise CheckpointError(f"the adapter's matrices or scale for {name} are not finite")
        found[name] = LowRank(a, b, float(given.scale))
    return found


@dataclass(frozen=True, slots=True)
class _Bound:
    """`LowRank` as a library multiplies by it."""

    a: Matrix
    b: Matrix
    scale: float


class LoadedAdapters:
    """The adapters of an executor that multiplies through an array library, by slot."""

    def __init__(self, library: Library, shapes: Shapes) -> None:
        self._library = library
        self._shapes = shapes
        self._slots: dict[int, dict[str, _Bound]] = {}

    @property
    def slots(self) -> frozenset[int]:
        """Slots that hold an adapter."""
        return frozenset(self._slots)

    def load(self, slot: int, adapter: Adapter) -> None:
        """Put an adapter into a free slot.

        Raises:
            CheckpointError: It does not fit the model.
            InternalError: The slot is taken, or negative.
        """
        ensure(slot >= 0, f"adapters: slot {slot} is negative")
        ensure(slot not in self._slots, f"adapters: slot {slot} is taken; unload it first")
        self._slots[slot] = {
            name: _Bound(
                self._library.bind_matrix(one.a, is_multiplied=True),
                self._library.bind_matrix(one.b, is_multiplied=True),
                one.scale,
            )
            for name, one in fitted(adapter, self._shapes).items()
        }

    def unload(self, slot: int) -> None:
        """Free a slot.

        Raises:
            InternalError: It holds nothing.
        """
        ensure(slot in self._slots, f"adapters: slot {slot} holds none")
        del self._slots[slot]

    def of(self, step: Step) -> StepAdapters:
        """Return what the adapters of a checked step add."""
        slots = np.repeat(step.adapter_slot, np.diff(step.starts))
        return StepAdapters(self._library, self._shapes, self._slots, {"T": slots, "R": slots[step.logit_rows]})


@dataclass(frozen=True, slots=True)
class StepAdapters:
    """See `ir.meaning.AdapterSource`."""

    library: Library
    shapes: Shapes
    adapters: Mapping[int, Mapping[str, _Bound]]
    slots: Mapping[str, NDArray[np.int32]]
    """Of every row: `T` tokens, `R` wanted rows."""

    def delta(self, parameter: str, x: Any, rows: str) -> Any:
        """Compute what is added to the product with `parameter`: [rows, N], see the protocol."""
        out = self.library.zeros((x.shape[0], self.shapes[parameter][0]))
        out *= -1.0  # -0 added to any number, zeros of both signs included, gives that number
        for slot in np.unique(self.slots[rows]).tolist():
            bound = self.adapters[slot].get(parameter) if slot >= 0 else None
            if bound is not None:
                chosen = self.library.asarray(np.flatnonzero(self.slots[rows] == slot))
                out[chosen] = self.library.gemm(self.library.gemm(x[chosen], bound.a), bound.b) * bound.scale
        return out
