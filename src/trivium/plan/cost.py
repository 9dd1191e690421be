"""What an instruction costs by counting: bytes it must move, operations it must do, and so the least time it can take.

::

    least time = max( (weights + KV) / memory,  operands and results / cache,  operations / peak )

Weights and keys come from memory anew in every step; what an instruction hands to the next stays in cache. A program's
least time is the sum over its instructions, since each waits for the one before.
Source: Williams, Waterman, Patterson 2009, Roofline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trivium.base.intmath import align_up
from trivium.plan.program import Buffer, Instruction, Plan, RowSymbol, Weight, row_bytes
from trivium.plan.vocabulary import PRODUCTS
from trivium.weights.kinds import PANEL_FORMATS

Arithmetic = Literal["int8", "bf16", "f32"]

PANEL = 32
"""Columns of a weight are padded to whole panels."""

_ARITHMETIC: Mapping[str, Arithmetic] = {"q8": "int8", "q8_wide": "int8", "bf16": "bf16", "i8": "int8"}
_PER_ELEMENT: Mapping[str, int] = {
    "embed": 1,
    "add_norm": 6,
    "rms_norm": 5,
    "gated": 12,
    "rope_table": 20,
    "rope_kv": 8,
}
"""Operations per element of the results of instructions that are no products; others take one."""
_KV_BYTES = {"f32": 4.0, "bf16": 2.0, "i8": 1.0}
_SCALE_BYTES = 4
"""Of a token's keys, and of its values, in int8: one scale per KV head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The sizes of a step, as far as costs depend on them."""

    num_tokens: int
    num_requests: int
    """Each runs equally many of the tokens, its last ones."""
    kv_len: int
    """Tokens of each request after the step."""
    num_rows: int
    """Rows whose logits are wanted."""

    def rows(self, symbol: RowSymbol) -> int:
        """Return how many rows a buffer has in this step."""
        return self.num_tokens if symbol == "T" else self.num_rows

    def visible(self, window: int | None) -> tuple[int, int]:
        """Return keys that are read, and (token, key) pairs that are scored, over all requests."""
        # positions   0 ....... kv_len - tokens ....... kv_len      a token at p sees p + 1 of them, at most the window
        tokens = self.num_tokens // self.num_requests
        first = self.kv_len - tokens
        if window is None:
            pairs = tokens * first + tokens * (tokens + 1) // 2
            return self.num_requests * self.kv_len, self.num_requests * pairs
        read = min(self.kv_len, window + tokens - 1)
        pairs = sum(min(position + 1, window) for position in range(first, self.kv_len))
        return self.num_requests * read, self.num_requests * pairs


def decode(num_requests: int, *, kv_len: int) -> Workload:
    """Describe a step that runs one token of each request."""
    return Workload(num_tokens=num_requests, num_requests=num_requests, kv_len=kv_len, num_rows=num_requests)


def chunk(num_tokens: int) -> Workload:
    """Describe a step that runs a whole prompt."""
    return Workload(num_tokens=num_tokens, num_requests=1, kv_len=num_tokens, num_rows=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a step costs, of one instruction or of several."""

    weight_bytes: float = 0.0
    kv_bytes: float = 0.0
    arena_bytes: float = 0.0
    """Operands read and results written."""
    operations: float = 0.0
    """A multiplication and its addition are two."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            weight_bytes=self.weight_bytes + other.weight_bytes,
            kv_bytes=self.kv_bytes + other.kv_bytes,
            arena_bytes=self.arena_bytes + other.arena_bytes,
            operations=self.operations + other.operations,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLimits:
    """The most that this machine does in a second, with the threads that are set."""

    memory_bytes: float
    """Read from memory, in order."""
    cache_bytes: float
    """Read from the last level of cache."""
    operations: Mapping[Arithmetic, float]
    """Multiply-adds counted as two, from registers."""

    def least_seconds(self, cost: Cost, arithmetic: Arithmetic) -> float:
        """Return the least time of one instruction."""
        return max(
            (cost.weight_bytes + cost.kv_bytes) / self.memory_bytes,
            cost.arena_bytes / self.cache_bytes,
            cost.operations / self.operations[arithmetic],
        )


def packed_bytes(weight: Weight) -> int:
    """Return the bytes of a weight as it is packed, padding included."""
    if len(weight.shape) == 1:
        return 4 * weight.shape[0]
    rows, depth = weight.shape
    kind = PANEL_FORMATS[weight.format]
    block = max([PANEL, *(part.span for part in kind.ingredients.values())])
    padded = align_up(depth, block)
    return round(align_up(rows, PANEL) * padded * kind.bits_per_weight(padded) / 8)


class CostModel:
    """Counts what the instructions of one plan cost."""

    def __init__(self, plan: Plan) -> None:
        """Index a checked plan."""
        self._plan = plan
        self._buffers = {buffer.name: buffer for buffer in plan.buffers}
        self._weights = {weight.name: weight for weight in plan.weights}
        self._windows = {layer: group.window for group in plan.kv.spec.groups for layer in group.layers}

    @property
    def kv_dtype(self) -> str:
        """Element type of keys and values."""
        return self._plan.kv.dtype

    def weights_of(self, instruction: Instruction) -> tuple[Weight, ...]:
        """Return the weights that an instruction reads, in the order of its operands."""
        return tuple(self._weights[name] for _, name in sorted(instruction.weights.items()))

    def buffer(self, name: str) -> Buffer:
        """Return a buffer by its name."""
        return self._buffers[name]

    def arithmetic(self, instruction: Instruction) -> Arithmetic:
        """Return what an instruction's operations are done in."""
        if instruction.op in PRODUCTS:
            return _ARITHMETIC.get(self._buffers[instruction.reads["x"]].kind, "f32")
        if instruction.op == "attend":
            return _ARITHMETIC.get(self._plan.kv.dtype, "f32")
        return "f32"

    def cost(self, instruction: Instruction, load: Workload) -> Cost:
        """Count one instruction."""
        touched = (*instruction.reads.values(), *instruction.writes.values())
        picked: RowSymbol | None = "R" if "rows" in instruction.reads else None  # other rows are not touched
        arena = sum(self._bytes(name, load, picked) for name in touched)
        weights = self.weights_of(instruction)
        if instruction.op in PRODUCTS:
            rows = load.rows(self._buffers[instruction.reads["x"]].rows)
            elements = sum(weight.shape[0] * weight.shape[1] for weight in weights if len(weight.shape) > 1)
            return Cost(weight_bytes=_bytes(weights), arena_bytes=arena, operations=2.0 * rows * elements)
        if instruction.op == "attend":
            return self._attention(instruction, load, arena)
        results = [self._buffers[name] for name in instruction.writes.values()]
        elements = max(load.rows(buffer.rows) * buffer.width for buffer in results)
        operations = float(elements * _PER_ELEMENT.get(instruction.op, 1))
        if instruction.op == "embed":
            [weight] = weights
            looked_up = min(1.0, load.num_tokens / weight.shape[0]) * packed_bytes(weight)
            return Cost(weight_bytes=looked_up, arena_bytes=arena, operations=operations)
        written = self._kv_bytes(load.num_tokens) if instruction.op == "rope_kv" else 0.0
        return Cost(weight_bytes=_bytes(weights), kv_bytes=written, arena_bytes=arena, operations=operations)

    def _attention(self, instruction: Instruction, load: Workload, arena: float) -> Cost:
        layer = instruction.attrs["layer"]
        keys, pairs = load.visible(self._windows[layer] if isinstance(layer, int) else None)
        sizes = self._plan.sizes
        # Scores and weighted values: two products over the head width for each pair and query head.
        operations = 4.0 * pairs * sizes.num_heads * sizes.head_width
        return Cost(kv_bytes=self._kv_bytes(keys), arena_bytes=arena, operations=operations)

    def _kv_bytes(self, num_tokens: int) -> float:
        """Bytes of K and V of so many tokens in one layer."""
        sizes, dtype = self._plan.sizes, self._plan.kv.dtype
        per_head = sizes.head_width * _KV_BYTES[dtype] + (_SCALE_BYTES if dtype == "i8" else 0)
        return 2.0 * num_tokens * sizes.num_kv_heads * per_head

    def _bytes(self, name: str, load: Workload, rows: RowSymbol | None) -> float:
        """Bytes of a buffer that a step touches: all its rows, or those that `rows` counts."""
        buffer = self._buffers[name]
        return float(load.rows(rows or buffer.rows) * row_bytes(buffer.kind, buffer.depth, buffer.sums))


def _bytes(weights: tuple[Weight, ...]) -> float:
    return float(sum(map(packed_bytes, weights)))
