"""The adapters of a native executor: kept by the kernels, in the layout that they read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trivium.base.errors import InternalError, ensure
from trivium.kernels import native
from trivium.runtime.adapters import fitted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trivium.plan.program import AttributeValue, Plan
    from trivium.runtime.adapters import Adapter, PreparedAdapter
    from trivium.weights.peft import Shapes


class NativeAdapters:
    """What may be added to the products of a plan's second program, by slot.

    Matrices are copied when they are prepared, as float32; a step allocates nothing.
    """

    def __init__(self, plan: Plan) -> None:
        """Find the products.

        Args:
            plan: Has a program `adapters`.

        Raises:
            InternalError: It has none, or the kernels are not here.
        """
        ensure("adapters" in plan.programs, f"{plan.architecture}: the plan has no program for adapters")
        found = native.load()
        if found is None:
            raise InternalError("adapters of a native executor need the native kernels, which are not here")
        asked = [each for each in plan.programs["adapters"].instructions if each.op == "adapter_delta"]
        parameters = [_names(each.attrs["parameters"]) for each in asked]
        known = {weight.name: weight.shape for weight in plan.weights}
        self.shapes: Shapes = {name: (known[name][0], known[name][1]) for names in parameters for name in names}
        self._index = {name: index for index, name in enumerate(self.shapes)}
        self._max_slot = int(found.MAX_ADAPTERS) - 1
        self.handle: Any = found.Adapters(
            max_rows=plan.limits.max_num_batched_tokens,
            max_sites=max(map(len, parameters), default=1),
            products=[(depth, num_cols) for num_cols, depth in self.shapes.values()],
        )

    def products(self, parameters: AttributeValue) -> list[int]:
        """Return the kernels' numbers of an instruction's products."""
        return [self._index[name] for name in _names(parameters)]

    def prepare(self, adapter: Adapter) -> PreparedAdapter:
        """Copy an adapter into the kernels' layout. From any thread, also while steps run.

        Raises:
            CheckpointError: It does not fit the model.
        """
        given = fitted(adapter, self.shapes)
        found = (given.get(name) for name in self.shapes)
        factors = [None if one is None else (one.a, one.b, one.scale) for one in found]
        prepared: PreparedAdapter = self.handle.prepare(factors=factors)
        return prepared

    def place(self, slot: int, prepared: PreparedAdapter) -> None:
        """Put a prepared adapter into a free slot; costs nothing.

        Raises:
            InternalError: The slot is taken, or there is none of that number.
        """
        ensure(0 <= slot <= self._max_slot, f"adapters: slot {slot}; slots are 0 to {self._max_slot}")
        try:
            self.handle.load(slot=slot, prepared=prepared)
        except ValueError as error:
            raise InternalError(str(error)) from None

    def unload(self, slot: int) -> None:
        """Free a slot.

        Raises:
            InternalError: It holds none.
        """
        ensure(0 <= slot <= self._max_slot, f"adapters: slot {slot} holds none")
        try:
            self.handle.unload(slot=slot)
        except ValueError as error:
            raise InternalError(str(error)) from None


def _names(parameters: AttributeValue) -> Sequence[str]:
    if not isinstance(parameters, tuple):
        raise InternalError(f"adapter_delta: parameters are {parameters!r}")
    return [str(name) for name in parameters]
