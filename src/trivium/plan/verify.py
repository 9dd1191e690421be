"""Compare a plan as it runs with what its instructions mean, and name the first that gives something else.

Every instruction is judged alone, on the operands that the executor itself had: an error is found where it is made and
not where it has grown. What rounding explains is allowed, element by element:

========  ============================================================================
rows      a small share of the row's root mean square
bf16      that, and one step of the number's eight bits
q8        that, and one unit of the number's group of 32
========  ============================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trivium.base.errors import ensure
from trivium.base.intmath import align_up
from trivium.ir.rounding import GROUPS, LARGEST_UNIT, round_operand
from trivium.plan.program import BufferKind, KVStorage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from trivium.ir.attention import KVRead
    from trivium.ir.meaning import Array, KVMemory
    from trivium.plan.replay import Replay

    Floats = NDArray[np.float32]

Trace = Sequence[Mapping[str, "Floats"]]
"""Per instruction: each buffer that it wrote, as float32 rows [rows, width]; operands as what their units stand for."""

_SHARE = 1e-3
"""Of a row's root mean square: other orders of sums, other exponentials."""
_ATTENTION_SHARE: Mapping[str, float] = {"f32": 1e-3, "bf16": 0.05, "i8": 0.2}
"""By the type of keys and values, to which queries and softmax weights are rounded as well."""
_BF16_STEP = 2.0**-7


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One result of one instruction, judged."""

    place: int
    op: str
    layer: int | None
    result: str
    buffer: str
    excess: float
    """The greatest error over what is allowed there; beyond 1 it is no rounding. Infinite for NaN and wrong shapes."""
    error: float
    """Root mean square of the error over that of what was expected."""

    @property
    def is_wrong(self) -> bool:
        """Whether rounding does not explain the difference."""
        return not self.excess <= 1.0

    def __str__(self) -> str:
        layer = "" if self.layer is None else f" of layer {self.layer}"
        return f"instruction {self.place}, {self.op}{layer}: {self.result} (buffer {self.buffer})"


class RoundedMemory:
    """A KV store that keeps what a plan's own store would: keys and values rounded to its type."""

    def __init__(self, memory: KVMemory, kv: KVStorage) -> None:
        """Stand before `memory`, which keeps float32."""
        self._memory = memory
        self._dtype = kv.dtype

    def write(self, layer: int, k: Array, v: Array) -> None:
        """Round, then store [T, G, D] keys and values."""
        self._memory.write(layer, self._rounded(k), self._rounded(v))

    def reads(self, layer: int, window: int | None) -> Iterable[KVRead]:
        """Yield what each token of the step sees."""
        return self._memory.reads(layer, window)

    def _rounded(self, x: Floats) -> Floats:
        if self._dtype == "bf16":
            rounded: Floats = round_operand(np, np.ascontiguousarray(x), "bf16")
            return rounded
        if self._dtype == "i8":
            scale = np.abs(x).max(axis=-1, keepdims=True) / np.float32(LARGEST_UNIT)
            units = np.round(np.divide(x, scale, out=np.zeros_like(x), where=scale > 0))
            quantized: Floats = np.multiply(units, scale, dtype=np.float32)
            return quantized
        return x


def verify_step(replay: Replay, trace: Trace, inputs: Mapping[str, Array | None], memory: KVMemory) -> list[Finding]:
    """Judge every result of a step.

    Args:
        replay: The program that ran.
        trace: What its instructions wrote.
        inputs: What the step brought, by buffer: numbers [rows], `embeds` [T, M] or `None`.
        memory: The KV store of the reference as the steps before have left it, rounded as the plan's own is.

    Returns:
        One finding per result, in the order of the program.

    Raises:
        InternalError: The trace is not of this program.
    """
    ensure(
        len(trace) == len(replay.instructions),
        f"the trace has {len(trace)} instructions, the plan {len(replay.instructions)}",
    )
    buffers = {buffer.name: buffer for buffer in replay.plan.buffers}
    held: dict[str, Array | None] = dict(inputs)
    findings: list[Finding] = []
    for place, instruction in enumerate(replay.instructions):
        reads = {operand: held[name] for operand, name in instruction.reads.items() if name in held}
        expected = replay.run(place, reads, memory)
        layer = instruction.attrs.get("layer")
        for result, name in instruction.writes.items():
            ensure(name in trace[place], f"the trace lacks {name}, which instruction {place} writes")
            found, wanted = trace[place][name], np.asarray(expected[result])
            kind, share = _tolerance(instruction.op, buffers[name].kind, replay.plan.kv)
            excess, error = _judge(found, wanted, kind, share)
            findings.append(
                Finding(
                    place=place,
                    op=instruction.op,
                    layer=layer if isinstance(layer, int) else None,
                    result=result,
                    buffer=name,
                    excess=excess,
                    error=error,
                )
            )
            held[name] = found if found.shape == wanted.shape else wanted
    return findings


def first_wrong(findings: Iterable[Finding]) -> Finding | None:
    """Return the first finding that rounding does not explain."""
    return next((finding for finding in findings if finding.is_wrong), None)


def relative_error(found: Floats, expected: Floats) -> float:
    """Return the root mean square of the error over that of what was expected."""
    scale = float(np.sqrt(np.mean(np.square(expected, dtype=np.float64))))
    error = float(np.sqrt(np.mean(np.square(np.subtract(found, expected, dtype=np.float64)))))
    return error / scale if scale else error


def _tolerance(op: str, kind: BufferKind, kv: KVStorage) -> tuple[BufferKind, float]:
    """Return what a result is rounded to, and the share of a row that other orders of operations may make."""
    if op == "attend":
        return kind, _ATTENTION_SHARE[kv.dtype]
    # Queries are kept as attention multiplies them, next to keys.
    return "bf16" if op == "rope_kv" and kv.dtype != "f32" else kind, _SHARE


def _judge(found: Floats, expected: Floats, kind: BufferKind, share: float) -> tuple[float, float]:
    """Return the greatest error over what is allowed, and the relative error."""
    if found.shape != expected.shape:
        return np.inf, np.inf
    if not found.size:
        return 0.0, 0.0
    if not np.array_equal(np.isfinite(found), np.isfinite(expected)):
        return np.inf, np.inf
    known = np.isfinite(expected)
    found, expected = np.where(known, found, 0), np.where(known, expected, 0)
    allowed = _allowed(expected, kind, share)
    return float(np.max(np.abs(found - expected) / allowed)), relative_error(found, expected)


def _allowed(expected: Floats, kind: BufferKind, share: float) -> Floats:
    row = np.sqrt(np.mean(np.square(expected), axis=1, keepdims=True))
    # A row of zeros must be zeros, but dividing by what is allowed must stay possible.
    allowed: Floats = np.zeros_like(expected) + np.maximum(np.float32(share) * row, np.float32(1e-30))
    if kind == "bf16":
        allowed += np.float32(_BF16_STEP) * np.abs(expected)
    if kind in GROUPS:
        group = GROUPS[kind]
        padded = np.zeros((len(expected), align_up(expected.shape[1], group)), np.float32)
        padded[:, : expected.shape[1]] = np.abs(expected)
        largest = padded.reshape(len(expected), -1, group).max(axis=2)
        units = np.repeat(largest / np.float32(LARGEST_UNIT), group, axis=1)[:, : expected.shape[1]]
        allowed += units * np.float32(1.01)
    return allowed
