"""Which whole pages the prefix index holds, by what keys; and which of them have just left it.

A listener of the index (`cache.page_runs`) and of its pools. Pages that leave keep their bytes until a later step
writes over them, so `departed` is emptied before every step::

    index          stores run [7 3 9] ───── drops 3 and 9 ─────┐
    ledger         7 3 9 known                7 known          │
    departed                                                   [3 9] ── exported ── next step
    uses           a page that two requests have used is worth writing before it leaves
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from trivium.cache.pages import NO_PAGE
from trivium.tiers.page import PageFacts, PageRef

if TYPE_CHECKING:
    from trivium.base.ids import PageId
    from trivium.cache.page_runs import PageRun

HOT_USES = 2
"""Requests that must have used a page, the one that computed it included, for it to be written ahead of time."""

_MOST_HOT = 4096
"""Pages that are remembered as worth writing; under load that never pauses the oldest are forgotten."""

PlacedPage = tuple[int, "PageId", PageFacts]
"""(group, page, facts): where the bytes of a whole page lie in the pool."""
_Known = tuple[int, "PageId", "PageRun", int]
"""(group, page, run, its index in the run)."""


class PageLedger:
    """Facts of the whole pages in the prefix index.

    Invariants:
        A page is known only while the index holds it.
    """

    def __init__(self, num_groups: int) -> None:
        self._runs: list[dict[PageId, tuple[PageRun, int]]] = [{} for _ in range(num_groups)]
        self._uses: list[dict[PageId, int]] = [{} for _ in range(num_groups)]
        self._departed: list[_Known] = []
        self._hot: deque[_Known] = deque(maxlen=_MOST_HOT)

    # -- told by the index and the pools ----------------------------------------------------------------------

    def stored(self, run: PageRun) -> None:
        """Note whole pages that have entered the index; they were computed."""
        for runs, pages in zip(self._runs, run.pages, strict=True):
            runs.update({page: (run, idx) for idx, page in enumerate(pages) if page != NO_PAGE})

    def removed(self, run: PageRun) -> None:
        """Take no notice: the pools tell of each page that is dropped, also of those that only a window loses."""

    def dropped(self, group: int, pages: Iterable[PageId]) -> None:
        """Note pages that the index drops, in the order in which they lie in a prefix."""
        runs, uses = self._runs[group], self._uses[group]
        for page in pages:
            known = runs.pop(page, None)
            if known is not None:
                uses.pop(page, None)
                self._departed.append((group, page, *known))

    # -- asked and told by the scheduler ----------------------------------------------------------------------

    def use(self, group: int, pages: Iterable[PageId]) -> None:
        """Count a use of pages by a request; what is no page, or not whole, is passed over."""
        runs, uses = self._runs[group], self._uses[group]
        for page in pages:
            known = runs.get(page)
            if known is None:
                continue
            uses[page] = count = uses.get(page, 1) + 1
            if count == HOT_USES:
                self._hot.append((group, page, *known))

    @property
    def has_departed(self) -> bool:
        """Whether pages have left whose bytes nobody has taken yet."""
        return bool(self._departed)

    def take_departed(self) -> list[PlacedPage]:
        """Return the pages that have left since the last call, the most valuable last: beginnings of prefixes."""
        if not self._departed:
            return []
        departed, self._departed = self._departed, []
        return [(group, page, facts_of(run, idx, group)) for group, page, run, idx in reversed(departed)]

    def forget_departed(self) -> None:
        """Let what has left go without being exported."""
        self._departed.clear()

    def next_hot(self) -> PlacedPage | None:
        """Return the next page that is worth writing while there is time, or `None`."""
        while self._hot:
            group, page, run, idx = self._hot.popleft()
            known = self._runs[group].get(page)
            if known is not None and known[0].keys[known[1]] == run.keys[idx]:
                return group, page, facts_of(run, idx, group)
        return None

    def residents(self) -> list[PlacedPage]:
        """List every page, beginnings of prefixes first: whatever part of the list is kept, is of use."""
        listed = [
            (group, page, facts_of(run, idx, group))
            for group, runs in enumerate(self._runs)
            for page, (run, idx) in runs.items()
        ]
        return sorted(listed, key=lambda place: place[2].index)

    def place_of(self, group: int, page: PageId) -> PlacedPage | None:
        """Return what is known of a page, or `None` when the index does not hold it as a whole one."""
        known = self._runs[group].get(page)
        return None if known is None else (group, page, facts_of(*known, group))

    def problems(self, held: Iterable[tuple[int, PageId]]) -> list[str]:
        """Compare with the pages that the index holds; return what is known and not held."""
        listed = set(held)
        return [
            f"group {group}: page {page} is known to the tiers and not in the index"
            for group, runs in enumerate(self._runs)
            for page in runs
            if (group, page) not in listed
        ]


def facts_of(run: PageRun, idx: int, group: int) -> PageFacts:
    """Return the facts of page `idx` of a run, in one group."""
    page_len = len(run.tokens) // len(run.keys)
    tokens = np.asarray(run.tokens[idx * page_len : (idx + 1) * page_len], "<i4").tobytes()
    parent = run.keys[idx - 1] if idx else run.before
    return PageFacts(PageRef(group, run.keys[idx]), parent, run.first + idx, tokens)
