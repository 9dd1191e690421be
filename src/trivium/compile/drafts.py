"""A program before memory is planned: instructions over named values, each with the form in which it is stored.

One node becomes one instruction, save reshapes, which are other names for the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trivium.base.errors import InternalError, ensure
from trivium.compile.edit import operands
from trivium.compile.formats import WeightFormat
from trivium.compile.pipeline import VIEWS, check_instructions
from trivium.config.model import RopeConfig
from trivium.ir.graph import OPERAND_KINDS, Graph, Node, TensorType, Value
from trivium.ir.ops import OPS
from trivium.plan.program import (
    AttributeValue,
    BufferKind,
    RowSymbol,
    SumKind,
    Weight,
    WeightPart,
)
from trivium.plan.vocabulary import INSTRUCTIONS

MAX_SUMS = 4
"""Most sums that an operand can hold (csrc/ops/operand/operand.h)."""

NAMES: Mapping[tuple[str, str], str] = {
    ("embed", "out"): "hidden",
    ("projection_add", "out"): "hidden",
    ("add_norm", "sum"): "hidden",
    ("add_norm", "wide"): "normed",
    ("add_norm", "operand"): "normed_operand",
    ("rope_table", "out"): "angles",
    ("projection", "out"): "projected",
    ("rope_kv", "q"): "queries",
    ("attend", "wide"): "attended",
    ("attend", "operand"): "attended_operand",
    ("gated_projection", "wide"): "gated",
    ("gated_projection", "operand"): "gated_operand",
    ("adapter_delta", "out"): "delta",
}
"""What people see a result's buffer called; others are called by their op, and see `_name`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """How a value is stored."""

    name: str
    kind: BufferKind
    rows: RowSymbol
    width: int
    depth: int
    sums: tuple[SumKind, ...] = ()
    is_input: bool = False
    """Whether the step brings it, so that it has no place in the arena."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftInstruction:
    """An instruction whose operands and results are values."""

    op: str
    reads: Mapping[str, str]
    writes: Mapping[str, str]
    weights: Mapping[str, str]
    attrs: Mapping[str, AttributeValue]

    @property
    def in_place(self) -> tuple[str, str] | None:
        """An operand, and the result that may lie over it."""
        return INSTRUCTIONS[self.op].in_place


@dataclass(slots=True)
class Draft:
    """One program."""

    instructions: list[DraftInstruction] = field(default_factory=list)
    values: dict[str, Spec] = field(default_factory=dict)
    weights: list[Weight] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)


def draft_program(graph: Graph, formats: Mapping[str, WeightFormat], ropes: list[RopeConfig]) -> Draft:
    """Turn nodes into instructions.

    Args:
        graph: What `pipeline.run_passes` gave.
        formats: Every matrix to its storage format.
        ropes: Ropes of the plan so far; those of the graph are appended.

    Raises:
        InternalError: An op is no instruction, or an operand does not fit its readers.
    """
    check_instructions(graph)
    return _Drafter(graph, formats, ropes).draft


class _Drafter:
    """Walks one graph."""

    def __init__(self, graph: Graph, formats: Mapping[str, WeightFormat], ropes: list[RopeConfig]) -> None:
        self._graph = graph
        self._formats = formats
        self._ropes = ropes
        self._types = {value.name: value.type for value in graph.values()}
        self._params = {value.name for value in graph.params}
        self._left = _left_operands(graph, formats)
        self._same: dict[str, str] = {}
        """View to the value whose bytes it is."""
        self._kv_heads: dict[str, AttributeValue] = {}
        """Kv token to the number of heads that were stored."""
        self.draft = Draft()
        used = {name for node in graph.nodes for name in node.inputs}
        for value in graph.inputs:
            if value.name in used:
                self.draft.values[value.name] = self._spec(value, value.name, is_input=True)
        for node in graph.nodes:
            if node.op in VIEWS:
                source = node.inputs[0] or ""
                self._same[node.outputs[0].name] = self._same.get(source, source)
            else:
                self._add(node)
        self._add_outputs()

    def _add(self, node: Node) -> None:
        reads: dict[str, str] = {}
        weights: dict[str, str] = {}
        for name, value in operands(node).items():
            if value is None or self._types[value].dtype == "kv" or "bias" in name:
                continue
            if value in self._params:
                weights[name] = self._weight([value])
            else:
                reads[name] = self._same.get(value, value)
        biases = self._biases(node)
        if any(biases):
            weights["bias"] = self._weight(biases, [self._columns(node, part) for part in range(len(biases))])
        writes = {}
        for result, made in zip(_results(node), node.outputs, strict=True):
            if made.type.dtype == "kv":
                self._kv_heads[made.name] = node.attributes["num_kv_heads"]  # type: ignore[assignment]  # a number
            else:
                writes[result] = made.name
                self.draft.values[made.name] = self._spec(made, _name(node, result))
        attrs = {each.name: self._attribute(node, each.name) for each in INSTRUCTIONS[node.op].attributes}
        self.draft.instructions.append(
            DraftInstruction(op=node.op, reads=reads, writes=writes, weights=weights, attrs=attrs)
        )

    def _add_outputs(self) -> None:
        for output, value in self._graph.outputs.items():
            held = self._same.get(value, value)
            spec = self.draft.values.get(held)
            if spec is None or spec.is_input:
                raise InternalError(f"{self._graph.name}: output {output} is {value}, which no instruction writes")
            self.draft.values[held] = Spec(
                name=output, kind=spec.kind, rows=spec.rows, width=spec.width, depth=spec.depth, sums=spec.sums
            )
            self.draft.outputs[output] = held

    def _spec(self, value: Value, name: str, *, is_input: bool = False) -> Spec:
        """Say how a value is stored; a row is whatever belongs to one token."""
        rows, *rest = value.type.shape
        symbol: RowSymbol = "R" if rows == "R" else "T"
        is_flat = rows == symbol and all(isinstance(dim, int) for dim in rest)
        ensure(is_flat, f"{self._graph.name}: {value.name} is {value.type}; its rows must be T or R")
        width = math.prod(int(dim) for dim in rest)
        if value.type.dtype in OPERAND_KINDS:
            depth, sums = self._left[value.name]
            return Spec(name=name, kind=_kind(value.type), rows=symbol, width=width, depth=depth, sums=sums)
        return Spec(name=name, kind=_kind(value.type), rows=symbol, width=width, depth=width, is_input=is_input)

    def _biases(self, node: Node) -> list[str | None]:
        """Return the bias of every part of a product, in the order of its columns."""
        found = operands(node)
        names = [f"bias_{part}" for part in range(len(self._matrices(node)))]
        if node.op == "gated_projection":
            names = ["gate_bias", "up_bias"]
        return [found.get(name) for name in names]

    def _matrices(self, node: Node) -> list[str]:
        found = operands(node)
        return [weight for name in OPS[node.op].matrices if (weight := found[name]) is not None]

    def _columns(self, node: Node, part: int) -> int:
        return int(self._types[self._matrices(node)[part]].shape[0])

    def _weight(self, parts: Sequence[str | None], rows: Sequence[int] = ()) -> str:
        """Enter a weight made of parameters one after the other, and return its name."""
        sizes = list(rows) or [int(self._types[part or ""].shape[0]) for part in parts]
        name = "+".join(part or "zeros" for part in parts)
        shape: tuple[int, ...] = (sum(sizes),)
        form = "f32"
        if len(parts) == 1 and parts[0] is not None:
            shape = tuple(int(dim) for dim in self._types[parts[0]].shape)
            form = self._formats[parts[0]].name if len(shape) > 1 else form
        weight = Weight(
            name=name,
            parts=tuple(WeightPart(part, size) for part, size in zip(parts, sizes, strict=True)),
            shape=shape,
            format=form,
        )
        if weight not in self.draft.weights:
            self.draft.weights.append(weight)
        return name

    def _attribute(self, node: Node, name: str) -> AttributeValue:
        """Return an attribute of an instruction: the op's own, or what the types of its operands say."""
        if name == "rope":
            return self._rope(node)
        if name not in node.attributes:
            return self._derived(node, name)
        value = node.attributes[name]
        if isinstance(value, RopeConfig):
            raise InternalError(f"{node.op}: {name} is no number, text or list")
        return value

    def _derived(self, node: Node, name: str) -> AttributeValue:
        found = operands(node)
        shape = self._types[node.inputs[0] or ""].shape
        match name:
            case "sums":
                _, sums = self._left[found["x"] or ""]
                kinds = [self._formats[weight].sum for weight in self._matrices(node)]
                return tuple(-1 if kind is None else sums.index(kind) for kind in kinds)
            case "count":
                return math.prod(int(dim) for dim in shape[1:-1])
            case "width" | "head_width":
                return int(shape[-1])
            case "num_heads":
                return int(shape[1])
            case "num_kv_heads":
                return self._kv_heads[found["kv"] or ""]
        raise InternalError(f"{node.op}: {name} is not known")

    def _rope(self, node: Node) -> int:
        rope = node.attributes["rope"]
        if not isinstance(rope, RopeConfig):
            raise InternalError(f"{node.op}: rope is {rope!r}")
        if rope not in self._ropes:
            self._ropes.append(rope)
        return self._ropes.index(rope)


def _name(node: Node, result: str) -> str:
    """Say what a result's buffer is called."""
    if node.op == "add_norm" and operands(node)["weight"] is None:
        return "rounded_operand" if result == "operand" else "hidden"
    return NAMES.get((node.op, result), node.op)


def _kind(found: TensorType) -> BufferKind:
    ensure(found.dtype != "kv", "a kv token has no bytes")
    return "i32" if found.dtype == "kv" else found.dtype


def _results(node: Node) -> list[str]:
    """Return the names of a node's results, as instructions call them."""
    gives = node.attributes.get("gives")
    if isinstance(gives, tuple):
        return [str(form) for form in gives]
    if node.op == "split":
        return [f"out_{idx}" for idx in range(len(node.outputs))]
    return ["q", "kv"] if node.op == "rope_kv" else ["out"]


def _left_operands(graph: Graph, formats: Mapping[str, WeightFormat]) -> dict[str, tuple[int, tuple[SumKind, ...]]]:
    """Find what the readers of every operand want of it: its depth, and the sums of its groups.

    Raises:
        InternalError: They do not agree, or want too many sums.
    """
    types = {value.name: value.type for value in graph.values()}
    found: dict[str, tuple[int, tuple[SumKind, ...]]] = {}
    for node in graph.nodes:
        inputs = operands(node)
        for weight in (inputs[name] for name in OPS[node.op].matrices):
            x = inputs["x"] if weight is not None else None
            if x is None or weight is None:
                continue
            ensure(weight in formats, f"{graph.name}: no format is known for parameter {weight}")
            form = formats[weight]
            is_right = types[x].dtype == form.operand
            ensure(is_right, f"{graph.name}: {weight} of format {form.name} cannot multiply {x}: {types[x]}")
            depth, sums = found.get(x, (form.padded(int(types[x].shape[-1])), ()))
            ensure(depth == form.padded(int(types[x].shape[-1])), f"{graph.name}: readers of {x} pad it differently")
            if form.sum is not None and form.sum not in sums:
                sums = (*sums, form.sum)
            ensure(len(sums) <= MAX_SUMS, f"{graph.name}: {x} would need {len(sums)} sums; an operand holds {MAX_SUMS}")
            found[x] = depth, sums
    return found
