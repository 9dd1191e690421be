"""A plan's own laws, derived anew from its instructions: nothing here trusts the compiler that made it.

The proof that no live value is overwritten is a run of the program on bytes instead of numbers: an instruction's
results invalidate every other buffer that shares a byte with them, and an operand must be valid when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from trivium.base.errors import PlanFormatError
from trivium.plan.program import (
    ARENA_ALIGNMENT,
    Buffer,
    BufferKind,
    Instruction,
    Plan,
    Program,
    ProgramName,
    is_quantized,
    operand_group,
    row_bytes,
)
from trivium.plan.tactic import check_tactic
from trivium.plan.vocabulary import INSTRUCTIONS, KINDS, STEP_INPUTS, InstructionSchema, find_operand, first_problem

_SUM_GROUPS: Mapping[BufferKind, tuple[int, ...]] = {"q8": (16, 32), "q8_wide": (64,)}
"""Units per sum, as csrc/ops/operand/operand.h has them."""
_MOST_ZERO = 128


def check_plan(plan: Plan) -> None:
    """Check that a plan can be run without reading or writing where it must not.

    Raises:
        PlanFormatError: It cannot; the message names the first thing that is wrong.
    """
    _check_limits(plan)
    for names in ([each.name for each in plan.buffers], [each.name for each in plan.weights]):
        twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
        _require(twice is None, f"{twice} is defined twice")
    for buffer in plan.buffers:
        _check_buffer(buffer, plan)
    for weight in plan.weights:
        rows = sum(part.rows for part in weight.parts)
        _require(
            bool(weight.shape) and min(weight.shape) > 0, f"weight {weight.name}: shape {list(weight.shape)} is empty"
        )
        _require(rows == weight.shape[0], f"weight {weight.name}: its parts have {rows} rows of {weight.shape[0]}")
    _require("base" in plan.programs, "there is no program base")
    for name, program in plan.programs.items():
        _check_program(name, program, plan)


def check_memory(name: ProgramName, program: Program, buffers: Mapping[str, Buffer]) -> None:
    """Check that every value is still whole when it is read, and at the end if it is an output.

    Args:
        name: The program's, for messages.
        program: Its instructions and outputs.
        buffers: By name, with offsets.

    Raises:
        PlanFormatError: An instruction reads what was not written, or was overwritten since.
    """
    neighbours = _neighbours(buffers.values())
    writer: dict[str, str] = {}  # buffer to the instruction that wrote over it
    valid = {buffer.name for buffer in buffers.values() if buffer.offset is None}
    for idx, instruction in enumerate(program.instructions):
        where = f"{name} instruction {idx} ({instruction.op})"
        for operand, read in instruction.reads.items():
            _require(read in valid, f"{where}: {operand} reads {read}, which {writer.get(read, 'nothing has written')}")
        _check_results(instruction, buffers, neighbours, where)
        for written in instruction.writes.values():
            lost = neighbours[written] & valid
            valid -= lost
            writer.update(dict.fromkeys(lost, f"{where} has overwritten with {written}"))
        valid.update(instruction.writes.values())
    for output, held in program.outputs.items():
        _require(held in valid, f"{name}: output {output} is {held}, which {writer.get(held, 'nothing has written')}")


def _require(condition: object, message: str) -> None:
    if not condition:
        raise PlanFormatError(message)


def _check_limits(plan: Plan) -> None:
    limits = plan.limits
    for name in ("max_num_batched_tokens", "max_logit_rows"):
        _require(getattr(limits, name) > 0, f"{name} is {getattr(limits, name)}; it must be at least 1")
    layers = sorted(layer for group in plan.kv.spec.groups for layer in group.layers)
    _require(
        layers == list(range(plan.sizes.num_layers)),
        f"the KV groups hold layers {layers}, not each of 0 to {plan.sizes.num_layers - 1} once",
    )


def _check_buffer(buffer: Buffer, plan: Plan) -> None:
    where = f"buffer {buffer.name}"
    is_operand = buffer.kind in KINDS["operand"]
    _require(
        buffer.width > 0 and buffer.depth >= buffer.width,
        f"{where}: depth {buffer.depth}, width {buffer.width}, where 1 <= width <= depth must hold",
    )
    if is_operand:
        group = operand_group(buffer.kind)
        _require(buffer.depth % group == 0, f"{where}: depth {buffer.depth} is no multiple of {group}")
    else:
        _require(buffer.depth == buffer.width, f"{where}: depth {buffer.depth} is not width {buffer.width}")
    _require(is_quantized(buffer.kind) or not buffer.sums, f"{where}: only q8 has sums, not {buffer.kind}")
    groups = _SUM_GROUPS.get(buffer.kind, ())
    _require(
        all(each.group in groups and 0 <= each.zero <= _MOST_ZERO for each in buffer.sums),
        f"{where}: sums {buffer.sums}; groups are {' or '.join(map(str, groups))}, zeros 0 to {_MOST_ZERO}",
    )
    if buffer.offset is None:
        _require(buffer.name in STEP_INPUTS, f"{where}: it has no offset, and no step brings it")
        return
    _require(buffer.name not in STEP_INPUTS, f"{where}: a step brings it, and it has an offset")
    needed = plan.limits.rows(buffer.rows) * row_bytes(buffer.kind, buffer.depth, buffer.sums)
    _require(buffer.num_bytes >= needed, f"{where}: {buffer.num_bytes} bytes; its rows take {needed}")
    _require(buffer.offset >= 0, f"{where}: offset {buffer.offset} is before the arena")
    aligned = buffer.offset % ARENA_ALIGNMENT == 0
    _require(aligned, f"{where}: offset {buffer.offset} is no multiple of {ARENA_ALIGNMENT}")
    end = buffer.offset + buffer.num_bytes
    _require(end <= plan.arena_bytes, f"{where}: it ends at {end}, behind the arena of {plan.arena_bytes} bytes")


def _check_program(name: ProgramName, program: Program, plan: Plan) -> None:
    buffers = {buffer.name: buffer for buffer in plan.buffers}
    weights = {weight.name for weight in plan.weights}
    for idx, instruction in enumerate(program.instructions):
        where = f"{name} instruction {idx} ({instruction.op})"
        schema = INSTRUCTIONS.get(instruction.op)
        if schema is None:
            raise PlanFormatError(f"{where}: there is no such instruction")
        _check_names(instruction, schema, where)
        for given, declared in ((instruction.reads, schema.reads), (instruction.writes, schema.writes)):
            for operand, used in given.items():
                _require(used in buffers, f"{where}: {operand} is {used}, which is no buffer")
                slot = find_operand(declared, operand)
                allowed = KINDS[slot.slot] if slot else ()
                kind = buffers[used].kind
                _require(kind in allowed, f"{where}: {operand} is {used} of kind {kind}, not {' or '.join(allowed)}")
        for operand, used in instruction.weights.items():
            _require(used in weights, f"{where}: {operand} is {used}, which is no weight")
        _check_attributes(instruction, buffers, plan, where)
    unknown = next((held for held in program.outputs.values() if held not in buffers), None)
    _require(unknown is None, f"{name}: output {unknown} is no buffer")
    check_memory(name, program, buffers)


def _check_names(instruction: Instruction, schema: InstructionSchema, where: str) -> None:
    for given, declared in (
        (instruction.reads, schema.reads),
        (instruction.weights, schema.weights),
        (instruction.writes, schema.writes),
        (instruction.attrs, schema.attributes),
    ):
        problem = first_problem(given, declared)
        _require(problem is None, f"{where}: it {problem}")
    _require(instruction.writes, f"{where}: it writes nothing")


def _check_attributes(instruction: Instruction, buffers: Mapping[str, Buffer], plan: Plan, where: str) -> None:
    attrs = instruction.attrs
    for name, limit in (("layer", plan.sizes.num_layers), ("rope", len(plan.ropes))):
        number = attrs.get(name, 0)
        is_right = name not in attrs or (isinstance(number, int) and 0 <= number < limit)
        _require(is_right, f"{where}: {name} is {number!r}; there are {limit}, counted from 0")
    sums = attrs.get("sums", ())
    known = len(buffers[instruction.reads["x"]].sums) if sums else 0
    is_right = isinstance(sums, tuple) and all(isinstance(each, int) and -1 <= each < known for each in sums)
    _require(is_right, f"{where}: sums are {sums!r}; its operand has {known}, counted from 0, and -1 is none")
    problem = check_tactic(instruction.tactic)
    _require(problem is None, f"{where}: {problem}")


def _check_results(
    instruction: Instruction, buffers: Mapping[str, Buffer], neighbours: Mapping[str, frozenset[str]], where: str
) -> None:
    """Check that no result lies over an operand, or over another result."""
    in_place = INSTRUCTIONS[instruction.op].in_place
    results = list(instruction.writes.items())
    for place, (result, written) in enumerate(results):
        _require(buffers[written].offset is not None, f"{where}: {result} writes {written}, which the step brings")
        for operand, used in (*instruction.reads.items(), *results[:place]):
            shares = used in neighbours[written] or used == written
            is_meant = (operand, result) == in_place and buffers[used].offset == buffers[written].offset
            _require(not shares or is_meant, f"{where}: {result} {written} lies over {operand} {used}")


def _neighbours(buffers: Iterable[Buffer]) -> dict[str, frozenset[str]]:
    """Buffer to the others that share a byte with it."""
    placed: list[tuple[int, int, str]] = []
    found: dict[str, set[str]] = {}
    for buffer in buffers:
        found[buffer.name] = set()
        if buffer.offset is not None:
            placed.append((buffer.offset, buffer.offset + buffer.num_bytes, buffer.name))
    placed.sort()
    open_ones: Sequence[tuple[int, int, str]] = ()
    for start, end, name in placed:
        open_ones = [each for each in open_ones if each[1] > start]
        for _, _, other in open_ones:
            found[name].add(other)
            found[other].add(name)
        open_ones.append((start, end, name))
    return {name: frozenset(others) for name, others in found.items()}
