"""How far a prefix reaches when pages of a lower tier are added to what the KV pool holds, and which pages that takes.

A length is reached when every KV group has what the next token needs: a full group all pages before it, a window group
those that the window still sees (see `cache.window`)::

    held_len 20, page_len 8    page   0    1    2    3    4
    full group                       held held tier tier  -       reaches 32: pages 2 and 3 come from the tier,
    window group, W = 9              held  -    -   tier  -       page 2 of the full group included

Only whole pages are in a tier, so a length that is reached through one is a multiple of the page length; where the
pool's own match ends inside a page, that page comes from the tier as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trivium.base.ids import PageId
from trivium.cache.pages import NO_PAGE
from trivium.cache.window import first_needed, usable_len

if TYPE_CHECKING:
    from trivium.cache.spec import KVSpec

HELD = PageId(0)
Has = Callable[[int, int], bool]
"""Whether a tier has (group, page index) of the prefix."""


def reach(spec: KVSpec, held: Sequence[Sequence[PageId]], held_len: int, has: Has, longest: int) -> int:
    """Return the largest length, at most `longest`, that can be had with the tier's help; 0 if none beyond `held_len`.

    Args:
        spec: Groups and page length.
        held: Per group, the pool's pages of the prefix, position-aligned; `NO_PAGE` where a window needs none.
        held_len: Tokens that they hold.
        has: What the tier has.
        longest: Upper bound in tokens.

    Cost: O(pages).
    """
    first, end = held_len // spec.page_len, longest // spec.page_len
    full = [idx for idx, group in enumerate(spec.groups) if group.window is None]
    if full:
        stop = first
        while stop < end and all(has(group, stop) for group in full):
            stop += 1
        end = stop
    pages: list[list[PageId]] = []
    for group_idx, group in enumerate(spec.groups):
        if group.window is None:
            pages.append([])
            continue
        own = list(held[group_idx][:first])
        own += [NO_PAGE] * (end - len(own))
        pages.append([
            page if page != NO_PAGE else HELD if has(group_idx, idx) else NO_PAGE for idx, page in enumerate(own)
        ])
    length = usable_len(pages, spec, end * spec.page_len)
    return length if length > held_len else 0


def pages_to_bring(spec: KVSpec, held_len: int, length: int) -> list[tuple[int, int]]:
    """Return (group, page index) of what must come from the tier to get from `held_len` to `length`, first page first.

    A match of `held_len` tokens holds what its windows need, so no window misses a page before its end.
    """
    end = length // spec.page_len
    starts = [max(held_len, first_needed(length, group.window)) // spec.page_len for group in spec.groups]
    return [(group, idx) for idx in range(min(starts), end) for group, start in enumerate(starts) if idx >= start]
