"""A prefix cache of whole blocks, simulated: how many prompt tokens it computes when many prompts come at once.

First come, first served; a step runs at most `budget` tokens, of prompts alone; memory is never short, so nothing is
evicted. A block is found by everything up to its end, so only whole blocks from the beginning are reused, and at most
all but the prompt's last token. Two rules for a block that another prompt is still computing:

*without look-ahead* it is not there yet, and is computed again; it can be found from the step after its own;
*with look-ahead* the prompt waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count


@dataclass(slots=True)
class _Running:
    """A prompt under way."""

    blocks: list[int]
    """Ids of its whole blocks; equal ids mean equal tokens up to the block's end."""
    length: int
    computed: int

    def completed(self, block_len: int) -> list[int]:
        """Return the blocks that are computed to their end."""
        return self.blocks[: self.computed // block_len]


def tokens_prefilled(
    prompts: Sequence[Sequence[int]], *, block_len: int, budget: int, seats: int, looks_ahead: bool
) -> int:
    """Return the prompt tokens that are computed until every prompt has been.

    Args:
        prompts: All there from the start, in order of arrival.
        block_len: Tokens of a block.
        budget: Most tokens of a step.
        seats: Most prompts that are under way at a time.
        looks_ahead: Whether a prompt waits for a block that another one is computing.
    """
    waiting = [
        _Running(ids, len(prompt), 0) for ids, prompt in zip(_block_ids(prompts, block_len), prompts, strict=True)
    ]
    running: list[_Running] = []
    cached: set[int] = set()
    total = 0
    while waiting or running:
        left = budget
        for one in running:
            left -= _advance(one, left)
        for one in list(waiting):
            if left == 0 or len(running) == seats:
                break
            most = (one.length - 1) // block_len  # the last token runs, whatever is there
            hit = next((idx for idx in range(most) if one.blocks[idx] not in cached), most)
            if looks_ahead and _is_under_way(one, hit, most, running):
                continue
            waiting.remove(one)
            one.computed = hit * block_len
            running.append(one)
            left -= _advance(one, left)
        total += budget - left
        cached.update(block for one in running for block in one.completed(block_len))
        running = [one for one in running if one.computed < one.length]
    return total


def _advance(one: _Running, left: int) -> int:
    taken = min(left, one.length - one.computed)
    one.computed += taken
    return taken


def _is_under_way(one: _Running, hit: int, most: int, running: Sequence[_Running]) -> bool:
    """Whether somebody is computing the first block that is missing."""
    return hit < most and any(one.blocks[hit] in other.blocks for other in running)


def _block_ids(prompts: Sequence[Sequence[int]], block_len: int) -> list[list[int]]:
    """Name every whole block by everything up to its end."""
    names: dict[tuple[int, tuple[int, ...]], int] = {}
    numbers = count(1)
    named = []
    for prompt in prompts:
        before, ids = 0, []
        for start in range(0, len(prompt) - block_len + 1, block_len):
            key = (before, tuple(prompt[start : start + block_len]))
            before = names[key] = names.get(key) or next(numbers)
            ids.append(before)
        named.append(ids)
    return named
