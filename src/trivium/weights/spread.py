"""Runs of a large array worked off by every usable core, without a temporary larger than a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from trivium.base.intmath import ceil_div

PARALLEL_ELEMENTS = 1 << 21
"""Elements per thread: with fewer a thread costs more than it saves."""


def usable_cores() -> int:
    """Return the cores that this process's affinity allows."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def spread(work: Callable[[int], None], starts: Iterable[int], num_elements: int) -> None:
    """Call `work(start)` for every start, in threads where `num_elements` in all are worth it.

    Args:
        work: Fills what belongs to one start; calls run at once, in any order.
        starts: Where the runs begin.
        num_elements: Of all runs together; decides how many threads there are.

    Raises:
        Exception: The first that `work` raised; what had not begun by then does not begin.
    """
    num_threads = min(usable_cores(), ceil_div(num_elements, PARALLEL_ELEMENTS))
    if num_threads <= 1:
        for start in starts:
            work(start)
        return
    with ThreadPoolExecutor(num_threads) as pool:
        for _ in pool.map(work, starts):
            pass
