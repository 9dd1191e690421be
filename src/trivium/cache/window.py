"""Which positions and pages a sliding window still needs.

A query at position L in a group with window W sees positions L - W + 1 .. L. With everything before L computed, the
group must therefore still hold [L - W + 1, L)::

    positions  0 ............ L - W + 1 ........ L
    pages      [ out ][ out ][ needed ][ needed ][ partly ]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trivium.base.ids import PageId
from trivium.base.intmath import ceil_div
from trivium.cache.pages import NO_PAGE
from trivium.cache.spec import KVGroup, KVSpec


def first_needed(length: int, window: int | None) -> int:
    """Return the first position whose KV the query at position `length` can see."""
    return 0 if window is None else max(0, length - window + 1)


def peak_pages(group: KVGroup, page_len: int, length: int, chunk: int) -> int:
    """Return the most pages a request of `length` tokens holds in `group` when it runs `chunk` tokens at a time."""
    whole = ceil_div(length, page_len)
    if group.window is None:
        return whole
    # The chunk [p, p + chunk) needs [p - W + 1, p + chunk): W - 1 + chunk positions, anyhow aligned.
    return min(whole, ceil_div(group.window - 1 + chunk, page_len) + 1)


def capacity_len(spec: KVSpec, num_pages: Sequence[int]) -> int | None:
    """Return the longest KV that one request alone can have in these pools; `None` when windows make it endless."""
    lengths = [
        count * spec.page_len
        for group, count in zip(spec.groups, num_pages, strict=True)
        if group.window is None or count < ceil_div(group.window, spec.page_len) + 1
    ]
    return min(lengths, default=None)


def usable_len(pages: Sequence[Sequence[PageId]], spec: KVSpec, longest: int) -> int:
    """Return the largest length, at most `longest`, for which every window group holds the pages it needs.

    Args:
        pages: Per group, the pages of a matched prefix of at least `longest` tokens; `NO_PAGE` where evicted.
        spec: Groups and page length.
        longest: Upper bound in tokens.

    Cost: O(pages) for specs with windows, else constant.
    """
    runs = [(_run_starts(pages[idx]), group.window) for idx, group in enumerate(spec.groups) if group.window]
    length = longest
    while length > 0:
        last = (length - 1) // spec.page_len
        if all(_holds(starts[last], window, length, spec.page_len) for starts, window in runs):
            return length
        # A shorter length in the same page needs the same pages or more of them: go on with the page before.
        length = last * spec.page_len
    return 0


def _holds(run_start: int, window: int, length: int, page_len: int) -> bool:
    first = first_needed(length, window)
    return first >= length or first // page_len >= run_start


def _run_starts(pages: Sequence[PageId]) -> list[int]:
    """Per page index, where the run of held pages that ends there begins; one past it when it is not held."""
    missing = np.array(pages, np.int32) == NO_PAGE
    starts: list[int] = np.maximum.accumulate(np.where(missing, np.arange(1, len(pages) + 1), 0)).tolist()
    return starts
