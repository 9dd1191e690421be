"""From fused graphs to a plan: values become buffers at fixed offsets, nodes become instructions.

Graphs of both programs are laid out in one arena. Values that lie in the same bytes in the same form, layer after
layer, share one buffer's name, so that a plan lists a handful of buffers and not hundreds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trivium.base.errors import ensure
from trivium.compile.drafts import Draft, Spec, draft_program
from trivium.compile.formats import WeightFormat
from trivium.compile.memory import Arena, plan_memory, prove
from trivium.config.model import ModelConfig, RopeConfig
from trivium.ir.graph import Graph
from trivium.plan.program import (
    Buffer,
    Instruction,
    KVStorage,
    Limits,
    ModelSizes,
    Plan,
    Program,
    ProgramName,
    Weight,
    row_bytes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """What a plan is made for, beside the graph."""

    config: ModelConfig
    formats: Mapping[str, WeightFormat]
    """Every matrix of the model to its storage format."""
    kv: KVStorage
    limits: Limits


def emit(graphs: Mapping[ProgramName, Graph], facts: PlanFacts) -> Plan:
    """Lay out programs in one arena.

    Args:
        graphs: What `pipeline.run_passes` gave, for each program.
        facts: What the plan is made for.

    Raises:
        InternalError: A graph is not one of instructions over operands that fit their readers; or the arena is not
            sound, which is proven for every plan.
    """
    weights: dict[str, Weight] = {}
    ropes: list[RopeConfig] = []
    table = _BufferTable()
    programs: dict[ProgramName, Program] = {}
    arena_bytes = 0
    for name, graph in graphs.items():
        draft = draft_program(graph, facts.formats, ropes)
        arena = _lay_out(draft, facts.limits)
        arena_bytes = max(arena_bytes, arena.num_bytes)
        prefix = "" if name == "base" else f"{name}."
        programs[name] = _program(draft, arena, facts.limits, table, prefix)
        for weight in draft.weights:
            ensure(weights.setdefault(weight.name, weight) == weight, f"two weights are called {weight.name}")
    return Plan(
        architecture=facts.config.architecture,
        limits=facts.limits,
        sizes=_model_sizes(facts.config),
        kv=facts.kv,
        ropes=tuple(ropes),
        weights=tuple(weights.values()),
        buffers=tuple(table.buffers.values()),
        arena_bytes=arena_bytes,
        programs=programs,
    )


def _lay_out(draft: Draft, limits: Limits) -> Arena:
    """Place a program's values, and prove that they may lie so."""
    sizes = {value: _num_bytes(spec, limits) for value, spec in draft.values.items() if not spec.is_input}
    keep = set(draft.outputs.values())
    arena = plan_memory(draft.instructions, sizes, keep=keep)
    prove(draft.instructions, sizes, arena, keep=keep)
    for idx, each in enumerate(draft.instructions):
        if each.op == "projection_add":
            residual, out = arena.offsets.get(each.reads["residual"]), arena.offsets[each.writes["out"]]
            ensure(residual == out, f"instruction {idx} adds to a residual that is needed afterwards, or an input")
    return arena


def _num_bytes(spec: Spec, limits: Limits) -> int:
    return limits.rows(spec.rows) * row_bytes(spec.kind, spec.depth, spec.sums)


def _program(draft: Draft, arena: Arena, limits: Limits, table: _BufferTable, prefix: str) -> Program:
    names = {
        value: table.name(spec, arena.offsets.get(value), _num_bytes(spec, limits), prefix)
        for value, spec in draft.values.items()
    }
    instructions = tuple(
        Instruction(
            op=each.op,
            reads={operand: names[value] for operand, value in each.reads.items()},
            writes={result: names[value] for result, value in each.writes.items()},
            weights=dict(each.weights),
            attrs=dict(each.attrs),
        )
        for each in draft.instructions
    )
    return Program(instructions=instructions, outputs={output: names[value] for output, value in draft.outputs.items()})


@dataclass(slots=True)
class _BufferTable:
    """Buffers of a plan: values of one role that lie alike have one name."""

    buffers: dict[tuple[object, ...], Buffer] = field(default_factory=dict)
    _names: set[str] = field(default_factory=set)

    def name(self, spec: Spec, offset: int | None, num_bytes: int, prefix: str) -> str:
        """Return the name of the buffer at `offset`, entering it when it is new; names begin with `prefix`."""
        stem = spec.name if spec.is_input else f"{prefix}{spec.name}"
        key = (stem, spec.kind, spec.rows, spec.width, spec.depth, spec.sums, offset)
        if key not in self.buffers:
            self.buffers[key] = Buffer(
                name=_unused(stem, self._names),
                kind=spec.kind,
                rows=spec.rows,
                width=spec.width,
                depth=spec.depth,
                sums=spec.sums,
                offset=offset,
                num_bytes=num_bytes,
            )
            self._names.add(self.buffers[key].name)
        return self.buffers[key].name


def _unused(name: str, taken: set[str]) -> str:
    """Return `name`, or with a number behind it that nobody has."""
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    return found


def _model_sizes(config: ModelConfig) -> ModelSizes:
    return ModelSizes(
        num_layers=config.num_layers,
        model_width=config.model_width,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_width=config.head_width,
        vocab_size=config.vocab_size,
    )


def list_program(program: Program, buffers: Sequence[Buffer]) -> str:
    """Write a program as text: one line per instruction, with the kinds and widths of what it writes."""
    known = {buffer.name: buffer for buffer in buffers}
    lines = []
    for idx, each in enumerate(program.instructions):
        results = ", ".join(f"{name}: {known[name].kind}[{known[name].rows},{known[name].width}]"
                            for name in each.writes.values())  # fmt: skip
        operands = ", ".join(f"{operand}={value}" for operand, value in (*each.reads.items(), *each.weights.items()))
        attrs = ", ".join(f"{name}={value}" for name, value in each.attrs.items())
        lines.append(f"{idx:4} {results} = {each.op}({operands}{'; ' if attrs else ''}{attrs})")
    return "\n".join(lines) + "\n"
