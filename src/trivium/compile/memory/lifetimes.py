"""From when to when each value needs its bytes, and which values share them step after step.

::

    instruction     0    1    2    3    4    5
    x               w    .    r
    y                         w    .    r         y overwrites x in instruction 2: one block, 0 to 4
    z                              w    r         alive beside it, so elsewhere

A value is alive from the instruction that writes it to the last one that reads it, both included, since an instruction
may write before it has read everything. The exception are results that an instruction may write over an operand, row by
row: where the operand dies there, both are one *block*.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trivium.base.errors import ensure


class Accesses(Protocol):
    """What memory planning sees of an instruction: names of values, by operand and by result."""

    @property
    def reads(self) -> Mapping[str, str]:
        """Operand to value."""
        ...

    @property
    def writes(self) -> Mapping[str, str]:
        """Result to value."""
        ...

    @property
    def in_place(self) -> tuple[str, str] | None:
        """An operand, and the result that may lie over it."""
        ...


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes that one value after another uses."""

    values: tuple[str, ...]
    """In the order in which they are written; all of one size."""
    first: int
    """Instruction that writes the first value."""
    last: int
    """Last instruction that needs the bytes."""
    num_bytes: int

    def meets(self, other: Block) -> bool:
        """Whether both are alive at some instruction."""
        return self.first <= other.last and other.first <= self.last


def find_blocks(program: Sequence[Accesses], sizes: Mapping[str, int], keep: Collection[str]) -> list[Block]:
    """Find every block of a program.

    Args:
        program: Instructions in the order in which they run; each value is written once.
        sizes: Bytes of each value that needs a place; reads of other names are the caller's inputs.
        keep: Values that must outlive the program.

    Returns:
        Blocks in the order in which they are first written.

    Raises:
        InternalError: A value is written twice, never, or read before it is written; or a write has no size.
    """
    written: dict[str, int] = {}
    last: dict[str, int] = {}
    for idx, instruction in enumerate(program):
        for value in instruction.reads.values():
            ensure(value in written or value not in sizes, f"instruction {idx} reads {value} before it is written")
            last[value] = idx
        for value in instruction.writes.values():
            ensure(value in sizes, f"instruction {idx} writes {value}, whose size is not known")
            ensure(value not in written, f"{value} is written by instructions {written.get(value)} and {idx}")
            written[value] = last[value] = idx
    unwritten = [value for value in (*sizes, *keep) if value not in written]
    ensure(not unwritten, f"no instruction writes {', '.join(unwritten)}")
    last.update((value, len(program)) for value in keep)
    chains = _chains(program, sizes, last)
    return [Block(tuple(chain), written[chain[0]], last[chain[-1]], sizes[chain[0]]) for chain in chains]


def _chains(program: Sequence[Accesses], sizes: Mapping[str, int], last: Mapping[str, int]) -> list[list[str]]:
    """Group values that overwrite each other; a chain's last value is the last to die."""
    chain_of: dict[str, list[str]] = {}
    chains: list[list[str]] = []
    for idx, instruction in enumerate(program):
        reused = _reused(instruction, idx, sizes, last)
        for result, value in instruction.writes.items():
            if reused is not None and result == reused[1]:
                chain_of[value] = chain_of[reused[0]]
            else:
                chain_of[value] = []
                chains.append(chain_of[value])
            chain_of[value].append(value)
    return chains


def _reused(
    instruction: Accesses, idx: int, sizes: Mapping[str, int], last: Mapping[str, int]
) -> tuple[str, str] | None:
    """Return the value that dies here, and the result that takes its bytes."""
    if instruction.in_place is None:
        return None
    operand, result = instruction.in_place
    old, new = instruction.reads.get(operand), instruction.writes.get(result)
    if old is None or new is None or sizes.get(old) != sizes[new] or last[old] != idx:
        return None
    # Read under another name as well, it would be overwritten while it is needed.
    return (old, result) if list(instruction.reads.values()).count(old) == 1 else None
