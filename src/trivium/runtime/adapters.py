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
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trivium.base.errors import CheckpointError, InternalError, ensure
from trivium.weights.peft import LowRank, Shapes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivium.runtime.arrays import Library, Matrix
    from trivium.schedule.step import Step


Adapter = Mapping[str, LowRank]
"""Parameter to what is added to its product; ranks may differ, and parameters may be left out."""


class PreparedAdapter(Protocol):
    """An adapter in the layout of the executor that prepared it, which alone can read it."""

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        ...


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


@dataclass(frozen=True, slots=True)
class BoundAdapter:
    """See `PreparedAdapter`; for executors over an array library."""

    bound: Mapping[str, _Bound]
    num_bytes: int


class LoadedAdapters:
    """The adapters of an executor that multiplies through an array library, by slot."""

    def __init__(self, library: Library, shapes: Shapes) -> None:
        self._library = library
        self.shapes = shapes
        self._slots: dict[int, Mapping[str, _Bound]] = {}

    @property
    def slots(self) -> frozenset[int]:
        """Slots that hold an adapter."""
        return frozenset(self._slots)

    def prepare(self, adapter: Adapter) -> BoundAdapter:
        """Bring an adapter into the library's layout.

        Raises:
            CheckpointError: It does not fit the model.
        """
        found = fitted(adapter, self.shapes)
        bound = {
            name: _Bound(
                self._library.bind_matrix(one.a, is_multiplied=True),
                self._library.bind_matrix(one.b, is_multiplied=True),
                one.scale,
            )
            for name, one in found.items()
        }
        return BoundAdapter(bound, sum(one.a.nbytes + one.b.nbytes for one in found.values()))

    def place(self, slot: int, prepared: PreparedAdapter) -> None:
        """Put a prepared adapter into a free slot.

        Raises:
            InternalError: The slot is taken, or negative; or another kind of executor prepared the adapter.
        """
        ensure(slot >= 0, f"adapters: slot {slot} is negative")
        ensure(slot not in self._slots, f"adapters: slot {slot} is taken; unload it first")
        if not isinstance(prepared, BoundAdapter):
            raise InternalError(f"adapters: slot {slot}: the adapter was prepared by another kind of executor")
        self._slots[slot] = prepared.bound

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
        return StepAdapters(self._library, self.shapes, self._slots, {"T": slots, "R": slots[step.logit_rows]})


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
