"""Give every value a fixed offset in one arena, so that nothing is allocated while serving.

Largest blocks first, each into the smallest gap that is free for its whole life (greedy by size). Source: Pisarchyk and
Lee 2020, Efficient Memory Management for Deep Neural Net Inference, section 5.

::

    offset    0 ........ 64 ......... 192 ........... 320
    placed    | block A  |   gap      |  block B     |          only blocks that are alive with the new one count
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from trivium.base.errors import ensure
from trivium.base.intmath import align_up
from trivium.compile.memory.lifetimes import Accesses, Block, find_blocks
from trivium.plan.program import ARENA_ALIGNMENT


@dataclass(frozen=True, slots=True)
class Arena:
    """Where values lie."""

    offsets: Mapping[str, int]
    """Value to its first byte, a multiple of `ARENA_ALIGNMENT`."""
    num_bytes: int


def plan_memory(program: Sequence[Accesses], sizes: Mapping[str, int], *, keep: Collection[str] = ()) -> Arena:
    """Place every value of a program.

    Args:
        program: Instructions in the order in which they run; each value is written once.
        sizes: Bytes of each value, at the largest step; names without a size are inputs and get no place.
        keep: Values that keep their bytes after the program has run.

    Raises:
        InternalError: The program is not one (see `lifetimes.find_blocks`), or a size is not positive.

    Cost: quadratic in the number of values that are alive together, linear in the length of the program.
    """
    empty = [value for value, size in sizes.items() if size <= 0]
    ensure(not empty, f"values without bytes: {', '.join(empty)}")
    offsets: dict[str, int] = {}
    placed: list[tuple[int, Block]] = []
    for block in sorted(find_blocks(program, sizes, keep), key=lambda each: (-each.num_bytes, each.first)):
        start = _best_gap(block, placed)
        placed.append((start, block))
        offsets.update((value, start) for value in block.values)
    end = max((start + block.num_bytes for start, block in placed), default=0)
    return Arena({value: offsets[value] for value in sizes}, align_up(end, ARENA_ALIGNMENT))


def _best_gap(block: Block, placed: Sequence[tuple[int, Block]]) -> int:
    """Return the start of the smallest gap that holds `block` among those alive with it, or the first byte behind."""
    end, best, best_bytes = 0, None, 0
    for start, other in sorted((each for each in placed if each[1].meets(block)), key=lambda each: each[0]):
        gap = start - end
        if gap >= block.num_bytes and (best is None or gap < best_bytes):
            best, best_bytes = end, gap
        end = max(end, align_up(start + other.num_bytes, ARENA_ALIGNMENT))
    return end if best is None else best
