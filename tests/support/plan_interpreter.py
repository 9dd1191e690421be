"""Run a plan's program in NumPy, instruction by instruction, from nothing but the plan: what a native executor must do.

Values live under their buffers' names. Writing a buffer destroys every other that shares a byte with it, so a plan that
overwrites what is needed cannot give the right answer here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trivium.ir.interpret import MEANINGS
from trivium.ir.meaning import Pass
from trivium.ir.ops import OPS
from trivium.kernels import gemm
from trivium.plan.program import Buffer, Instruction, Plan, ProgramName, Weight
from trivium.runtime.arrays import NumpyLibrary

OPERAND_KINDS = ("f32t", "bf16", "q8", "q8_wide")


class PlanInterpreter:
    """One program of a plan, with weights."""

    def __init__(self, plan: Plan, name: ProgramName, parameters: Mapping[str, np.ndarray]) -> None:
        self._plan = plan
        self._program = plan.programs[name]
        self._buffers = {buffer.name: buffer for buffer in plan.buffers}
        self._library = NumpyLibrary(gemm)
        self._weights = {weight.name: self._bind(weight, parameters) for weight in plan.weights}
        self._held: dict[str, np.ndarray] = {}

    def run(self, inputs: Mapping[str, Any], memory: Any, adapters: Any = None) -> dict[str, np.ndarray]:
        """Run every instruction and return the outputs."""
        self._held = {name: inputs[name] for name in self._buffers if name in inputs}
        run = Pass(self._library, memory, adapters)
        for instruction in self._program.instructions:
            made = MEANINGS[instruction.op](run, *self._operands(instruction), **self._attributes(instruction))
            results = made if len(_results(instruction)) > 1 else (made,)
            for result, value in zip(_results(instruction), results, strict=True):
                if result in instruction.writes:
                    self._put(instruction.writes[result], value)
        return {name: np.array(self._held[buffer]) for name, buffer in self._program.outputs.items()}

    def _bind(self, weight: Weight, parameters: Mapping[str, np.ndarray]) -> Any:
        parts = [
            np.zeros((part.rows, *weight.shape[1:]), np.float32)
            if part.parameter is None
            else parameters[part.parameter]
            for part in weight.parts
        ]
        joined = np.concatenate(parts)
        assert joined.shape == weight.shape
        return joined if joined.ndim == 1 else self._library.bind_matrix(joined, is_multiplied=True)

    def _put(self, name: str, value: np.ndarray) -> None:
        buffer = self._buffers[name]
        for other in tuple(self._held):
            if other != name and _overlap(buffer, self._buffers[other]):
                del self._held[other]
        flat = value.reshape(len(value), -1)
        assert flat.shape[1] == buffer.width
        self._held[name] = flat

    def _operands(self, instruction: Instruction) -> list[Any]:
        biases = self._biases(instruction)
        found = []
        for name in OPS[instruction.op].input_names:
            if name in instruction.weights:
                found.append(self._weights[instruction.weights[name]])
            elif name in instruction.reads:
                found.append(self._shaped(instruction, name))
            else:
                found.append(biases.get(name))
        return found

    def _biases(self, instruction: Instruction) -> dict[str, np.ndarray]:
        """Cut the one bias of an instruction into those of its parts."""
        if "bias" not in instruction.weights:
            return {}
        whole, start, found = self._weights[instruction.weights["bias"]], 0, {}
        for matrix in OPS[instruction.op].matrices:
            if matrix in instruction.weights:
                end = start + self._weight(instruction.weights[matrix]).shape[0]
                found[matrix.replace("weight", "bias") if "weight" in matrix else f"{matrix}_bias"] = whole[start:end]
                start = end
        assert start == len(whole)
        return found

    def _weight(self, name: str) -> Weight:
        return next(weight for weight in self._plan.weights if weight.name == name)

    def _shaped(self, instruction: Instruction, name: str) -> Any:
        """Give a row the shape in which the op reads it."""
        value, attrs = self._held[instruction.reads[name]], instruction.attrs
        if value is None or (instruction.op, name) not in _SHAPES:
            return value
        return value.reshape(len(value), *_SHAPES[instruction.op, name](attrs))

    def _attributes(self, instruction: Instruction) -> dict[str, Any]:
        given: dict[str, Any] = {name: instruction.attrs.get(name) for name in OPS[instruction.op].attributes}
        if "gives" in given:
            given["gives"] = tuple(instruction.writes)
            operand = instruction.writes.get("operand")
            given["kind"] = None if operand is None else self._buffers[operand].kind
            assert given["kind"] in {None, *OPERAND_KINDS}
        if instruction.op == "rope_table":
            given["rope"] = self._plan.ropes[given["rope"]]
        return given


def _results(instruction: Instruction) -> tuple[str, ...]:
    return ("q", "kv") if instruction.op == "rope_kv" else tuple(instruction.writes)


_SHAPES: Mapping[tuple[str, str], Callable[[Mapping[str, Any]], tuple[int, ...]]] = {
    ("rope_kv", "table"): lambda _: (2, -1),
    ("attend", "q"): lambda attrs: (attrs["num_heads"], attrs["head_width"]),
    ("split", "x"): lambda attrs: (attrs["count"], sum(attrs["sizes"])),
    ("rms_norm", "x"): lambda attrs: (attrs["count"], attrs["width"]),
}


def _overlap(one: Buffer, other: Buffer) -> bool:
    if one.offset is None or other.offset is None:
        return False
    return one.offset < other.offset + other.num_bytes and other.offset < one.offset + one.num_bytes
