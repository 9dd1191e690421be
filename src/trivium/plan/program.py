"""The compiled product as plain records: what a native program runs, in which order, on which bytes.

A plan holds numbers and names, no weights and no graph, so that it reads and writes as JSON without further rules.
`compile.emit` makes it; `plan` stores it; the native executor lowers it to calls. Letters: T tokens of a step, R
rows whose logits are wanted; M, N, K, F, H, G, D as in `ir.ops`.

**Buffers.** A row of a buffer belongs to one token (or wanted row). Kinds:

=======  ==============================================================================================
i32      whole numbers, one per row: what a step gives
f32      float32, row-major [rows, width]
f32t     left operand of products with float32 and float16 weights, in tiles of rows (csrc/ops/operand/operand.h)
bf16     left operand of products with bfloat16 weights, in tiles
q8       left operand of products with integer weights: units, scales, then one block per entry of `sums`
=======  ==============================================================================================

**Instructions.** Operands go by name. `?` marks what may be absent; an absent operand has no entry.

================  ==================  ===========================  ==================  ================================
op                reads               weights                      writes              attrs
================  ==================  ===========================  ==================  ================================
embed             token_ids embeds?   weight                       out                 scale
rope_table        positions reach                                  out                 rope (index in `Plan.ropes`)
add_norm          a b? rows?          weight? b_weight?            sum? wide?          eps
                                                                   operand?
adapter_delta     x                                                out                 parameters widths rows
projection        x delta?            weight_0 weight_1? weight_2? out                 scale softcap sums
                                      bias?
projection_add    x residual delta?   weight_0 bias?               out                 sums
gated_projection  x delta?            gate up bias?                wide? operand?      activation sums
rope_kv           qkv table?          q_norm? k_norm?              q                   layer num_heads num_kv_heads
                                                                                       head_width norm eps
attend            q                                                wide? operand?      layer num_heads num_kv_heads
                                                                                       head_width scale window softcap
split             x                                                out_0 out_1 …       sizes count
rms_norm          x                   weight                       out                 eps width count
add, mul          a b                                              out
scale             x                                                out                 factor
softcap           x                                                out                 cap
gated             gate up                                          out                 activation
================  ==================  ===========================  ==================  ================================

In words:

* embed: row of the weight times `scale`; rows of `embeds` win where their first element is not NaN.
* rope_table: [T, 2 * half] cosines, then sines, attention factor applied.
* add_norm: sum = a + b, or a + rms_norm(b, b_weight; eps), or a where there is no b; y = rms_norm(sum, weight; eps),
  or the sum where there is no weight. `sum` and `wide` (= y) are float32 rows, `operand` is y rounded to the buffer's
  kind. With `rows` [R], wide and operand hold y of those rows only, and there is no `sum`; without, a and b may
  themselves have R rows. `sum` may lie where a lies.
* adapter_delta: what the step's adapters add to the products with `parameters`, one after the other, [rows, their
  widths]: for each row the adapter of its request, -0 where it has none. x is float32; `rows` is T or R. Where no
  adapter of the step has anything for `parameters`, nothing is written, and their products take no delta.
* projection: v = x @ [weight_0; weight_1; weight_2].T + bias + delta, times `scale`, soft-capped to `softcap` if given.
  `sums[i]` says which of x's sums part i reads; -1: none.
* projection_add: out = residual + v; out always lies where residual lies.
* gated_projection: activation(x @ gate.T + …) * (x @ up.T + …); bias and delta hold gate's columns, then up's.
* rope_kv: q, k, v follow each other in a row of qkv. Norm of q and of k (each if its weight is there; `norm` is head:
  over each head, full: over all heads together, none), rotation by the table (none where there is no table), k and v to
  the KV store of `layer`, q to the buffer [T, H * D].
* attend: attention of each token over its request's KV of `layer`; out [T, H * D] as rows and as operand.
* split: the row is `count` runs of sum(sizes) elements; piece i takes sizes[i] of each run.
* rms_norm: the row is `count` runs of `width` elements, each normalised alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trivium.cache.spec import KVSpec
from trivium.config.model import RopeConfig
from trivium.ir.rounding import GROUPS

PLAN_VERSION = 1
"""Of this vocabulary: grows with every change of a record or of an instruction's meaning."""

ARENA_ALIGNMENT = 64
"""Every buffer's offset is a multiple of this many bytes."""

BufferKind = Literal["i32", "f32", "f32t", "bf16", "q8", "q8_wide"]
RowSymbol = Literal["T", "R"]
ProgramName = Literal["base", "adapters"]
AttributeValue = int | float | str | None | tuple[int | float | str, ...]

OPERAND_GROUP, WIDE_GROUP = GROUPS["q8"], GROUPS["q8_wide"]
"""Values of an operand that share a scale, and what its depth is padded to: see `operand_group`."""


@dataclass(frozen=True, slots=True)
class SumKind:
    """A sum of an operand's units that integer weights need beside their products.

    Weights with an offset want minus `zero` times the sum of each group's units; weights with a minimum (`zero` is 0)
    want the group's scale times its sum.
    """

    group: int
    """Values per sum: 16 or 32; 64 of q8_wide."""
    zero: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """Bytes of one value, for as many rows as a step may have."""

    name: str
    kind: BufferKind
    rows: RowSymbol
    width: int
    """Elements of a row."""
    depth: int
    """Elements of a row as stored: operands are padded with zeros; else `width`."""
    sums: tuple[SumKind, ...] = ()
    """Of an operand of whole numbers: what its readers need, in order."""
    offset: int | None
    """First byte in the arena; `None` for what the step brings (`token_ids`, `positions`, `reach`, ...)."""
    num_bytes: int
    """For the most rows that a step may have."""


def operand_group(kind: BufferKind) -> int:
    """Return how many values of an operand share a scale, and what its depth is padded to."""
    return GROUPS.get(kind, OPERAND_GROUP)


def is_quantized(kind: BufferKind) -> bool:
    """Whether a buffer holds whole numbers with a scale per group."""
    return kind in GROUPS


def row_bytes(kind: BufferKind, depth: int, sums: tuple[SumKind, ...] = ()) -> int:
    """Return how many bytes one row takes.

    Args:
        kind: Kind of the buffer.
        depth: Elements of a row as stored; a multiple of `operand_group(kind)` for operands.
        sums: Of an operand of whole numbers.
    """
    if kind == "bf16":
        return 2 * depth
    if is_quantized(kind):
        return depth + 4 * (depth // operand_group(kind)) + sum(4 * (depth // each.group) for each in sums)
    return 4 * depth


@dataclass(frozen=True, slots=True)
class WeightPart:
    """One parameter inside a weight."""

    parameter: str | None
    """Canonical name; `None` stands for zeros (a bias that one of several merged products lacks)."""
    rows: int
    """How many rows of the weight are its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A matrix [N, K] that products and look-ups read, packed in its format; or a vector [N] of float32."""

    name: str
    parts: tuple[WeightPart, ...]
    """What lies in it, from the first row to the last."""
    shape: tuple[int, ...]
    format: str
    """Storage format as csrc/ops/linear/format.h names it; `f32` for vectors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One native call: see the table at the top of this module."""

    op: str
    reads: Mapping[str, str]
    """Operand to buffer."""
    writes: Mapping[str, str]
    """Result to buffer."""
    weights: Mapping[str, str] = field(default_factory=dict)
    """Operand to weight."""
    attrs: Mapping[str, AttributeValue] = field(default_factory=dict)
    tactic: Mapping[str, AttributeValue] | None = None
    """What the tuner chose; `None`: by rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Instructions in the order in which they run, and where the results are afterwards."""

    instructions: tuple[Instruction, ...]
    outputs: Mapping[str, str]
    """Graph output (`logits`) to buffer; it keeps its bytes until the next step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The largest step that the arena holds."""

    max_num_batched_tokens: int
    """T."""
    max_logit_rows: int
    """R."""

    def rows(self, symbol: RowSymbol) -> int:
        """Return the most rows of a buffer."""
        return self.max_num_batched_tokens if symbol == "T" else self.max_logit_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """What the executor must know beside the instructions."""

    num_layers: int
    model_width: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    vocab_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KVStorage:
    """How keys and values lie in memory."""

    spec: KVSpec
    dtype: Literal["f32", "bf16", "i8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A model, compiled for some shapes, weight formats and limits: it runs any checkpoint that has them."""

    version: int = PLAN_VERSION
    architecture: str
    limits: Limits
    sizes: ModelSizes
    kv: KVStorage
    ropes: tuple[RopeConfig, ...]
    weights: tuple[Weight, ...]
    buffers: tuple[Buffer, ...]
    arena_bytes: int
    """One arena serves both programs; at least `ARENA_ALIGNMENT`-aligned."""
    programs: Mapping[ProgramName, Program]
    """`adapters` is `base` with what the step's adapters add to every product."""
