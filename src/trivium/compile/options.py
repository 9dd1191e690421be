"""What passes must know beside the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trivium.base.errors import InternalError
from trivium.compile.formats import WeightFormat
from trivium.ir.graph import Dim, OperandKind


@dataclass(frozen=True, slots=True)
class LeftOperand:
    """How a product's left operand must be stored: products can share one only where they agree in this."""

    kind: OperandKind
    depth: int
    """K, padded to whole blocks of the weight's format."""


@dataclass(frozen=True, slots=True)
class PassOptions:
    """Facts about the weights that a graph is compiled for, and which of a plan's programs is wanted."""

    formats: Mapping[str, WeightFormat]
    """Parameter that is multiplied by or looked up in, to the format in which it is stored."""
    has_adapters: bool = False
    """Whether every product takes what adapters add to it."""

    def format_of(self, parameter: str) -> WeightFormat:
        """Return how a parameter is stored.

        Raises:
            InternalError: Nobody said.
        """
        if parameter not in self.formats:
            raise InternalError(f"no format is known for parameter {parameter}")
        return self.formats[parameter]

    def left_of(self, parameter: str, depth: Dim) -> LeftOperand:
        """Return what the product with `parameter` [N, K] must be given, K being `depth`.

        Raises:
            InternalError: The parameter's format is not known, or its depth is a symbol.
        """
        if not isinstance(depth, int):
            raise InternalError(f"parameter {parameter} has no fixed depth: {depth}")
        form = self.format_of(parameter)
        return LeftOperand(form.operand, form.padded(depth))
