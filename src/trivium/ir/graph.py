"""Graphs: typed values, nodes and a flat list of them in SSA form.

A graph describes one forward pass over a step. It knows neither weights (parameters are names and shapes) nor
memory (the KV store is an effect behind the ops `kv_write` and `attention`). Sizes that change from step to step are
symbols: `T` tokens in the step, `B` requests, `R` rows whose logits are wanted; all others are numbers.

Records are frozen: a pass makes a new graph. `ir.verify` says what a legal graph is, `ir.printer` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from trivium.config.model import RopeConfig

DType = Literal["f32", "i32", "kv", "f32t", "bf16", "q8", "q8_wide"]
OperandKind = Literal["f32t", "bf16", "q8", "q8_wide"]
Dim = int | str
Attribute = int | float | str | None | tuple[int, ...] | tuple[Dim, ...] | RopeConfig

SYMBOLS = ("T", "B", "R")
"""Sizes known only when a step runs."""

OPERAND_KINDS: tuple[OperandKind, ...] = ("f32t", "bf16", "q8", "q8_wide")
"""Element types of left operands of products, see `TensorType`."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """What a value is: its element type and its sizes, numbers or symbols.

    `kv` is the type of the token that `kv_write` hands to `attention`: it holds nothing and orders the two.

    A value of an operand kind can only be multiplied by weights: its rows are rounded and laid out for that. `f32t` is
    not rounded, `bf16` to the nearest bfloat16, `q8` to eight bits with one scale for each 32 elements (`ir.rounding`
    has the formulas). Its numbers are those after the rounding.
    """

    dtype: DType
    shape: tuple[Dim, ...] = ()

    def __str__(self) -> str:
        return "kv" if self.dtype == "kv" else f"{self.dtype}[{','.join(str(dim) for dim in self.shape)}]"


@dataclass(frozen=True, slots=True)
class Value:
    """A name in the graph and its type; names are unique over inputs, parameters and node outputs."""

    name: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class Node:
    """One op applied to earlier values."""

    op: str
    inputs: tuple[str | None, ...]
    """Value names, aligned with the op's declared inputs; `None` where an optional input is absent."""
    attributes: Mapping[str, Attribute]
    outputs: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """A forward pass: inputs and parameters, nodes in an order in which they can run, named outputs."""

    name: str
    inputs: tuple[Value, ...]
    params: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: Mapping[str, str] = field(default_factory=dict)
    """Output name to value name."""

    def param_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return what must be bound before the graph can run: parameter name to its shape."""
        return {param.name: tuple(int(dim) for dim in param.type.shape) for param in self.params}

    def values(self) -> Iterator[Value]:
        """Yield every value in definition order: inputs, parameters, then node outputs."""
        yield from self.inputs
        yield from self.params
        for node in self.nodes:
            yield from node.outputs
