"""What passes must know beside the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trivium.base.errors import InternalError
from trivium.ir.graph import OperandKind


@dataclass(frozen=True, slots=True)
class PassOptions:
    """Facts about the weights that a graph is compiled for, and which of its two programs is wanted."""

    operand_kinds: Mapping[str, OperandKind]
    """Parameter that is multiplied by, to what its left operand must be rounded to; follows from its format."""
    has_adapters: bool = False
    """Whether every product takes what adapters add to it."""

    def kind_of(self, parameter: str) -> OperandKind:
        """Return what the left operand of a product with `parameter` is rounded to.

        Raises:
            InternalError: Nobody said.
        """
        if parameter not in self.operand_kinds:
            raise InternalError(f"no operand kind is known for parameter {parameter}")
        return self.operand_kinds[parameter]
