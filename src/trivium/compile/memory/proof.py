"""Prove that an arena is sound, without lifetimes: run the program on names instead of numbers.

Memory is a set of byte ranges, each holding one value. A write puts its value down and destroys whatever it overlaps; a
read must find its value whole. A result may touch a range that its own instruction reads only where the instruction
allows it, and then exactly. So any plan that would let a number be overwritten while it is needed fails here, whatever
rule placed it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from trivium.base.errors import ensure
from trivium.compile.memory.lifetimes import Accesses
from trivium.compile.memory.planner import Arena
from trivium.plan.program import ARENA_ALIGNMENT


def prove(program: Sequence[Accesses], sizes: Mapping[str, int], arena: Arena, *, keep: Collection[str] = ()) -> None:
    """Check every read and write.

    Args:
        program: Instructions in the order in which they run.
        sizes: Bytes of each value that has a place.
        arena: What is to be proven.
        keep: Values that must still be whole at the end.

    Raises:
        InternalError: A value lies outside, is not aligned, or is overwritten before it is read.

    Cost: for each instruction, linear in the values that are whole at the time.
    """
    for value, size in sizes.items():
        start = arena.offsets[value]
        is_inside = start >= 0 and start + size <= arena.num_bytes
        ensure(is_inside, f"{value} lies at {start} + {size}, outside the arena of {arena.num_bytes} bytes")
        ensure(start % ARENA_ALIGNMENT == 0, f"{value} lies at {start}, which is no multiple of {ARENA_ALIGNMENT}")
    whole: dict[str, tuple[int, int]] = {}
    for idx, instruction in enumerate(program):
        read = [value for value in instruction.reads.values() if value in sizes]
        for value in read:
            ensure(value in whole, f"instruction {idx} reads {value}, which was overwritten or never written")
        ranges = {value: _range(value, sizes, arena) for value in instruction.writes.values()}
        for value, its_range in ranges.items():
            for other in read:
                is_free = not _overlap(its_range, whole[other]) or _is_allowed(instruction, other, value, whole, ranges)
                ensure(is_free, f"instruction {idx} writes {value} over {other}, which it reads")
            for other, other_range in ranges.items():
                is_free = other == value or not _overlap(its_range, other_range)
                ensure(is_free, f"instruction {idx} writes {value} and {other} to the same bytes")
        for its_range in ranges.values():
            whole = {value: held for value, held in whole.items() if not _overlap(held, its_range)}
        whole.update(ranges)
    for value in keep:
        ensure(value in whole, f"{value} is kept, but overwritten or never written")


def _range(value: str, sizes: Mapping[str, int], arena: Arena) -> tuple[int, int]:
    return arena.offsets[value], arena.offsets[value] + sizes[value]


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _is_allowed(
    instruction: Accesses,
    old: str,
    new: str,
    whole: Mapping[str, tuple[int, int]],
    ranges: Mapping[str, tuple[int, int]],
) -> bool:
    """Whether the instruction may write `new` over `old`: named so, read once, the same bytes."""
    if instruction.in_place is None or whole[old] != ranges[new]:
        return False
    operand, result = instruction.in_place
    is_named = instruction.reads.get(operand) == old and instruction.writes.get(result) == new
    return is_named and list(instruction.reads.values()).count(old) == 1
