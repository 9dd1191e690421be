"""The instructions as data: which operands each takes and gives, of which kinds, and which attributes it has.

What they do is told in `plan.program`; this table is what reading, explaining and checking a plan go by. An operand
is float32 rows unless it says `:whole` (numbers) or `:operand` (the left side of a product). A trailing `?` marks
what may be absent, a trailing `*` numbered ones: `out_*` is out_0, out_1 and so on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from trivium.plan.program import BufferKind

Slot = Literal["rows", "whole", "operand"]

KINDS: Mapping[str, tuple[BufferKind, ...]] = {
    "rows": ("f32",),
    "whole": ("i32",),
    "operand": ("f32t", "bf16", "q8", "q8_wide"),
}
"""Slot to the kinds of buffers that may stand there."""

STEP_INPUTS = ("token_ids", "positions", "reach", "logit_rows", "embeds")
"""Buffers that a step brings; they have no place in the arena."""

PRODUCTS = ("projection", "projection_add", "gated_projection")
"""Instructions that multiply by matrices."""

FUSED = ("add_norm", *PRODUCTS, "rope_kv", "attend")
"""Instructions that stand for several ops of a model's definition."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One name that an instruction may or must give."""

    name: str
    slot: str = "rows"
    is_optional: bool = False
    is_numbered: bool = False

    def matches(self, given: str) -> bool:
        """Whether a given name is this one, or one of its numbers."""
        if self.is_numbered:
            return given.startswith(self.name) and given.removeprefix(self.name).isdecimal()
        return given == self.name


Operands = tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class InstructionSchema:
    """One line of the vocabulary."""

    reads: Operands
    weights: Operands
    writes: Operands
    attributes: Operands
    in_place: tuple[str, str] | None = None
    """Operand and result that share their bytes: row by row, one becomes the other."""


def _operands(column: str) -> Operands:
    found: list[Operand] = []
    for word in column.split():
        name, _, slot = word.rstrip("?*").partition(":")
        found.append(Operand(name, slot or "rows", is_optional=word.endswith("?"), is_numbered=word.endswith("*")))
    return tuple(found)


def _schema(
    reads: str, weights: str, writes: str, attributes: str, in_place: tuple[str, str] | None = None
) -> InstructionSchema:
    return InstructionSchema(_operands(reads), _operands(weights), _operands(writes), _operands(attributes), in_place)


INSTRUCTIONS: Mapping[str, InstructionSchema] = {
    "embed": _schema("token_ids:whole embeds?", "weight", "out", "scale"),
    "rope_table": _schema("positions:whole reach:whole", "", "out", "rope"),
    "add_norm": _schema("a b? rows:whole?", "weight? b_weight?", "sum? wide? operand:operand?", "eps", ("a", "sum")),
    "adapter_delta": _schema("x", "", "out", "parameters widths rows"),
    "projection": _schema("x:operand delta?", "weight_0 weight_1? weight_2? bias?", "out", "scale softcap sums"),
    "projection_add": _schema("x:operand residual delta?", "weight_0 bias?", "out", "sums", ("residual", "out")),
    "gated_projection": _schema("x:operand delta?", "gate up bias?", "wide? operand:operand?", "activation sums"),
    "rope_kv": _schema("qkv table?", "q_norm? k_norm?", "q", "layer num_heads num_kv_heads head_width norm eps"),
    "attend": _schema(
        "q", "", "wide? operand:operand?", "layer num_heads num_kv_heads head_width scale window softcap"
    ),
    "split": _schema("x", "", "out_*", "sizes count"),
    "rms_norm": _schema("x", "weight", "out", "eps width count"),
    "add": _schema("a b", "", "out", ""),
    "mul": _schema("a b", "", "out", ""),
    "scale": _schema("x", "", "out", "factor"),
    "softcap": _schema("x", "", "out", "cap"),
    "gated": _schema("gate up", "", "out", "activation"),
}


def find_operand(declared: Operands, given: str) -> Operand | None:
    """Return the declaration of a given name, or nothing."""
    return next((operand for operand in declared if operand.matches(given)), None)


def first_problem(given: Iterable[str], declared: Operands) -> str | None:
    """Return what is wrong with the names that an instruction gives, or nothing."""
    given = list(given)
    unknown = next((name for name in given if find_operand(declared, name) is None), None)
    if unknown is not None:
        return f"takes no {unknown}"
    needed = (operand for operand in declared if not operand.is_optional)
    missing = next((operand for operand in needed if not any(map(operand.matches, given))), None)
    return None if missing is None else f"lacks {missing.name}"
