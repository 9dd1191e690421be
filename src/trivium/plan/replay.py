"""Run single instructions of a plan with the meanings of its ops: what they should have given, for the same operands.

A plan names buffers, packed weights and derived numbers; the meanings in `ir` take values, parameters and attributes.
This module is the way back, and knows nothing of how a plan was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trivium.base.errors import ensure
from trivium.ir.interpret import MEANINGS
from trivium.ir.meaning import Pass
from trivium.ir.ops import OPS
from trivium.plan.program import Instruction, Plan, ProgramName

if TYPE_CHECKING:
    from trivium.ir.meaning import AdapterSource, Array, ArrayLibrary, KVMemory

_FORMS = ("sum", "wide", "operand")
_BIASES = {"gate_bias": 0, "up_bias": 1, "bias_0": 0, "bias_1": 1, "bias_2": 2}
"""Operand of an op to its part of the instruction's one bias."""


class Replay:
    """One program of a plan, instruction by instruction."""

    def __init__(
        self, plan: Plan, library: ArrayLibrary, params: Mapping[str, Any], *, program: ProgramName = "base"
    ) -> None:
        """Look names up.

        Args:
            plan: A checked plan.
            library: Arrays and products.
            params: Every parameter, as the library binds it.
            program: Which program.
        """
        self.plan = plan
        self.instructions = plan.programs[program].instructions
        self._library = library
        self._params = params
        self._weights = {weight.name: weight for weight in plan.weights}
        self._kinds = {buffer.name: buffer.kind for buffer in plan.buffers}

    def run(
        self, place: int, reads: Mapping[str, Array | None], memory: KVMemory, *, adapters: AdapterSource | None = None
    ) -> dict[str, Array]:
        """Compute what an instruction gives.

        Args:
            place: Which instruction.
            reads: Each of its operands as [rows, width]; numbers as [rows]; `None` for `embeds` that a step lacks.
            memory: The KV store, as the instructions before have left it.
            adapters: Where the program asks for them.

        Returns:
            Result to [rows, width] float32.

        Raises:
            InternalError: An operand or a parameter is missing.

        Effects:
            `rope_kv` writes the step's keys and values into `memory`.
        """
        instruction = self.instructions[place]
        schema = OPS[instruction.op]
        operands = [self._operand(name, instruction, reads) for name in schema.input_names]
        attributes = {name: self._attribute(name, instruction) for name in schema.attributes}
        made = MEANINGS[instruction.op](Pass(self._library, memory, adapters), *operands, **attributes)
        results = made if isinstance(made, tuple) else (made,)
        xp = self._library.xp
        return {
            name: xp.reshape(result, (result.shape[0], -1))
            for name, result in zip(_results(instruction), results, strict=False)
        }

    def _operand(self, name: str, instruction: Instruction, reads: Mapping[str, Array | None]) -> Any:
        if name in instruction.reads:
            ensure(name in reads, f"{instruction.op}: operand {name} was not given")
            given = reads[name]
            return None if given is None else self._shaped(name, instruction, given)
        if name in instruction.weights:
            [part] = self._weights[instruction.weights[name]].parts
            return self._param(part.parameter)
        if name in _BIASES and "bias" in instruction.weights:
            parts = self._weights[instruction.weights["bias"]].parts
            return self._param(parts[_BIASES[name]].parameter) if _BIASES[name] < len(parts) else None
        return None

    def _param(self, name: str | None) -> Any:
        if name is None:
            return None
        ensure(name in self._params, f"parameter {name} is not bound")
        return self._params[name]

    def _shaped(self, name: str, instruction: Instruction, rows: Array) -> Array:
        """Give flat rows the axes that the op's meaning has."""
        attrs = instruction.attrs
        inner: tuple[Any, ...] | None = None
        if name == "table":
            inner = (2, -1)
        elif instruction.op == "attend":
            inner = (attrs["num_heads"], attrs["head_width"])
        elif instruction.op in {"rms_norm", "split"}:
            inner = (attrs["count"], -1)
        return rows if inner is None else self._library.xp.reshape(rows, (rows.shape[0], *inner))

    def _attribute(self, name: str, instruction: Instruction) -> Any:
        if name == "gives":
            return tuple(form for form in _FORMS if form in instruction.writes)
        if name == "kind":
            held = instruction.writes.get("operand")
            return None if held is None else self._kinds[held]
        value = instruction.attrs[name]
        return self.plan.ropes[int(str(value))] if name == "rope" else value


def _results(instruction: Instruction) -> list[str]:
    """Return the names of what an instruction writes, in the order in which its op gives them."""
    forms = [form for form in _FORMS if form in instruction.writes]
    numbered = sorted((name for name in instruction.writes if name not in _FORMS), key=lambda name: (len(name), name))
    return [*forms, *numbered]
