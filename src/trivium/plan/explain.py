"""What a plan does, as a table: instruction by instruction, what it must cost and, where it was timed, what it does.

Instructions that are alike in everything but their layer are one row. `explain` makes records; `plan.explain_text` and
`plan.explain_page` show them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trivium.plan.cost import Arithmetic, Cost, CostModel, MachineLimits, Workload
from trivium.plan.program import AttributeValue, Instruction, Plan, ProgramName
from trivium.plan.tactic import tactic_text
from trivium.plan.vocabulary import FUSED, PRODUCTS

NATIVE_CALLS = 2
"""Of every step: forward, and sample."""

Seconds = Sequence[float]
"""Of each instruction, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One row, or a whole program, under one workload."""

    cost: Cost
    predicted_s: float
    """The least time: what a roofline allows."""
    measured_s: float | None

    @property
    def share(self) -> float | None:
        """Predicted over measured: 1 is all that the machine can do."""
        return None if not self.measured_s else self.predicted_s / self.measured_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Instructions that are alike."""

    places: tuple[int, ...]
    """Where they are in the program."""
    op: str
    shape: str
    formats: str
    """Of what is read: operand and weights, or keys and values."""
    tactic: str
    figures: tuple[Figures, ...]
    """One per workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A program of a plan, explained."""

    program: ProgramName
    loads: tuple[Workload, ...]
    rows: tuple[Row, ...]
    totals: tuple[Figures, ...]
    """One per workload."""
    num_instructions: int
    num_fused: int
    """Instructions that stand for several ops of the model's definition."""
    native_calls: int
    """Per step."""
    arena_bytes: int
    limits: MachineLimits


def explain(
    plan: Plan,
    loads: Sequence[Workload],
    limits: MachineLimits,
    measured: Mapping[int, Seconds] | None = None,
    *,
    program: ProgramName = "base",
    is_grouped: bool = True,
) -> Explanation:
    """Explain one program of a plan.

    Args:
        plan: A checked plan.
        loads: Steps to count for.
        limits: Of the machine that the prediction is for.
        measured: Place in `loads` to the seconds of each instruction.
        program: Which one.
        is_grouped: Whether instructions that are alike share a row.
    """
    model = CostModel(plan)
    instructions = plan.programs[program].instructions
    groups: dict[object, list[int]] = {}
    for place, instruction in enumerate(instructions):
        groups.setdefault(likeness(instruction, model) if is_grouped else place, []).append(place)
    rows = [_row(places, instructions, model, loads, limits, measured or {}) for places in groups.values()]
    return Explanation(
        program=program,
        loads=tuple(loads),
        rows=tuple(rows),
        totals=tuple(_sum(row.figures[idx] for row in rows) for idx in range(len(loads))),
        num_instructions=len(instructions),
        num_fused=sum(instruction.op in FUSED for instruction in instructions),
        native_calls=NATIVE_CALLS,
        arena_bytes=plan.arena_bytes,
        limits=limits,
    )


def shape_text(instruction: Instruction, model: CostModel) -> str:
    """Write an instruction's sizes: `576 → 576+192+192` of a product, heads of an attention, else a row's width."""
    if instruction.op in PRODUCTS:
        matrices = [weight for weight in model.weights_of(instruction) if len(weight.shape) > 1]
        rows = model.buffer(instruction.reads["x"]).rows
        columns = "+".join(str(weight.shape[0]) for weight in matrices)
        return f"{matrices[0].shape[1]} → {columns}{_of_rows(rows)}"
    attrs = instruction.attrs
    if "num_heads" in attrs:
        window = f", window {attrs['window']}" if attrs.get("window") else ""
        return f"{attrs['num_heads']}/{attrs['num_kv_heads']} heads x {attrs['head_width']}{window}"
    results = [model.buffer(name) for name in instruction.writes.values()]
    return f"{max(buffer.width for buffer in results)}{_of_rows(results[0].rows)}"


def formats_text(instruction: Instruction, model: CostModel) -> str:
    """Write what an instruction reads and how: `q8 x i4m_g32`."""
    if instruction.op in PRODUCTS:
        matrices = (weight for weight in model.weights_of(instruction) if len(weight.shape) > 1)
        formats = dict.fromkeys(weight.format for weight in matrices)
        return f"{model.buffer(instruction.reads['x']).kind} x {'+'.join(formats)}"
    if instruction.op == "embed":
        return model.weights_of(instruction)[0].format
    if instruction.op in {"rope_kv", "attend"}:
        return f"kv {model.kv_dtype}"
    kinds = dict.fromkeys(model.buffer(name).kind for name in instruction.writes.values())
    return "→ " + "+".join(kinds)


def _of_rows(symbol: str) -> str:
    return " (wanted rows)" if symbol == "R" else ""


def likeness(instruction: Instruction, model: CostModel) -> object:
    """Return what two instructions must agree in to share a row."""
    buffers = (*instruction.reads.items(), *instruction.writes.items())
    kinds = tuple((operand, *_kind(name, model)) for operand, name in buffers)
    weights = tuple((weight.shape, weight.format) for weight in model.weights_of(instruction))
    attrs: tuple[tuple[str, AttributeValue], ...] = tuple(
        (name, value) for name, value in instruction.attrs.items() if name not in {"layer", "rope"}
    )
    return instruction.op, kinds, weights, attrs, tactic_text(instruction)


def _kind(name: str, model: CostModel) -> tuple[str, str, int]:
    buffer = model.buffer(name)
    return buffer.kind, buffer.rows, buffer.width


def _row(
    places: Sequence[int],
    instructions: Sequence[Instruction],
    model: CostModel,
    loads: Sequence[Workload],
    limits: MachineLimits,
    measured: Mapping[int, Seconds],
) -> Row:
    first = instructions[places[0]]
    arithmetic = model.arithmetic(first)
    figures = []
    for idx, load in enumerate(loads):
        costs = [model.cost(instructions[place], load) for place in places]
        seconds = sum(measured[idx][place] for place in places) if idx in measured else None
        figures.append(_figures(costs, arithmetic, limits, seconds))
    return Row(
        places=tuple(places),
        op=first.op,
        shape=shape_text(first, model),
        formats=formats_text(first, model),
        tactic=tactic_text(first) if first.op in PRODUCTS else "",
        figures=tuple(figures),
    )


def _figures(costs: Sequence[Cost], arithmetic: Arithmetic, limits: MachineLimits, measured_s: float | None) -> Figures:
    return Figures(
        cost=sum(costs, Cost()),
        predicted_s=sum(limits.least_seconds(cost, arithmetic) for cost in costs),
        measured_s=measured_s,
    )


def _sum(figures: Iterable[Figures]) -> Figures:
    all_of_them = list(figures)
    seconds = [each.measured_s for each in all_of_them if each.measured_s is not None]
    return Figures(
        cost=sum((each.cost for each in all_of_them), Cost()),
        predicted_s=sum(each.predicted_s for each in all_of_them),
        measured_s=sum(seconds) if seconds else None,
    )
