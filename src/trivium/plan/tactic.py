"""How an instruction's tactic is written: by the number of rows that a step brings.

::

    {"kernel": "auto", "4": "direct", "64": "unpacked"}

    rows      1 .. 4    5 .. 64     65 and more
    kernel    direct    unpacked    auto

All tactics of a kernel give the same bits, so the choice is about time alone. Without a tactic, rules decide.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from trivium.plan.program import AttributeValue, Instruction

KERNELS = ("auto", "direct", "unpacked")
"""Tactics of products, see csrc/ops/linear/linear.h; `auto` is by rule."""
OTHERWISE = "kernel"
"""Stands for more rows than any number names."""


def kernel_for(instruction: Instruction, num_rows: int) -> str:
    """Return the kernel that an instruction runs with when a step has so many rows."""
    tactic = instruction.tactic or {}
    limits = sorted(int(name) for name in tactic if name != OTHERWISE)
    chosen = next((str(limit) for limit in limits if num_rows <= limit), OTHERWISE)
    return str(tactic.get(chosen, "auto"))


def kernel_ranges(instruction: Instruction) -> tuple[tuple[int, str], ...]:
    """Return (greatest number of rows, kernel) in ascending order, for the native program.

    More rows than the last entry names run with `kernel_for` of any greater number.
    """
    tactic = instruction.tactic or {}
    limits = sorted(int(name) for name in tactic if name != OTHERWISE)
    return tuple((limit, str(tactic[str(limit)])) for limit in limits)


def tactic_text(instruction: Instruction) -> str:
    """Write a tactic for people: `≤4 direct, ≤64 unpacked, else auto`."""
    if not instruction.tactic:
        return "rule"
    texts = [f"≤{limit} {kernel}" for limit, kernel in kernel_ranges(instruction)]
    rest = str(instruction.tactic.get(OTHERWISE, "auto"))
    return ", ".join([*texts, f"else {rest}"]) if texts else rest


def make_tactic(kernels: Mapping[int, str]) -> dict[str, AttributeValue] | None:
    """Write a tactic from the kernel that was found best up to each number of rows.

    Neighbours that agree are one entry, and the greatest number's kernel holds beyond it too.

    Args:
        kernels: Number of rows to kernel.

    Returns:
        The tactic; `None` where it would say nothing but `auto`.
    """
    ordered = sorted(kernels.items())
    if not any(kernel != "auto" for _, kernel in ordered):
        return None
    tactic: dict[str, AttributeValue] = {OTHERWISE: ordered[-1][1]}
    for (limit, kernel), (_, following) in itertools.pairwise(ordered):
        if kernel != following:
            tactic[str(limit)] = kernel
    return tactic


def check_tactic(tactic: Mapping[str, AttributeValue] | None) -> str | None:
    """Return what is wrong with a tactic, or nothing."""
    for name, kernel in (tactic or {}).items():
        if name != OTHERWISE and not (name.isascii() and name.isdigit() and int(name) > 0):
            return f"tactic {name!r} is neither {OTHERWISE!r} nor a number of rows"
        if kernel not in KERNELS:
            return f"tactic {name} is {kernel!r}; it must be one of {', '.join(KERNELS)}"
    return None
