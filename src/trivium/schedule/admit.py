"""Whether a waiting request may start: do the pages it needs for its known tokens fit beside the others'?

Per KV group::

    free + evictable  -  outstanding pages of running requests  =  spare
    start when        spare - pages that the match pins - pages still to be taken  >=  headroom

`headroom` is one page for each running request, so that those who decode can go on for a while; nobody keeps any
when nothing runs. A request takes as much of the cache as fits: with its partly shared last page (one page more
while it is copied), else whole pages only, else nothing.

This is the policy "as many as fit now"; others would answer the same question.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trivium.cache.kv_cache import Holding, KVCache
from trivium.cache.window import peak_pages
from trivium.schedule.request import Request


class Admission:
    """Page arithmetic of one step's starts."""

    def __init__(self, cache: KVCache, chunk_len: int) -> None:
        self._cache = cache
        self._chunk_len = chunk_len
        self._spare: list[int] = []
        self._headroom = 0

    def begin_step(self, running: Sequence[Request]) -> None:
        """Count what is spare when `running` requests have what they need for their known tokens."""
        self._headroom = len(running)
        self._spare = [pool.num_available for pool in self._cache.pools]
        for request in running:
            # A decoding request's next page is what the headroom is for.
            if request.target_len - request.computed_len <= 1:
                continue
            for group, peak in enumerate(self._peak(request.need_len)):
                self._spare[group] -= max(0, peak - _num_held(request.held, group))

    def fits_uncached(self, need_len: int) -> bool:
        """Return whether a request that needs `need_len` tokens fits even if nothing of it is cached."""
        return all(
            spare - count >= self._headroom for spare, count in zip(self._spare, self._peak(need_len), strict=True)
        )

    def try_open(self, request: Request) -> Holding | None:
        """Open a holding for a waiting request, or return `None` when it does not fit now.

        Effects:
            What the request still needs, and the page that it may want next, are no longer spare.
        """
        if min(self._spare) <= self._headroom:
            return None  # Whatever is cached, a start takes a page of every group.
        need = self._peak(request.need_len)
        longest = longest_hit(request)
        while True:
            before = [pool.num_available for pool in self._cache.pools]
            holding = self._cache.open(np.array(request.tokens[:longest], np.int32), request.namespace, longest)
            left = [
                spare - (available - pool.num_available) - max(0, count - _num_held(holding, group))
                for group, (spare, available, pool, count) in enumerate(
                    zip(self._spare, before, self._cache.pools, need, strict=True)
                )
            ]
            if all(pages >= self._headroom for pages in left):
                self._spare = left
                self._headroom += 1
                return holding
            # Next: whole pages only; if that was it, or a window moved the end into a page again, nothing.
            is_partial = bool(holding.sources) and longest == longest_hit(request)
            longest = holding.locked_len if is_partial else 0
            self._cache.close(holding, None)
            if holding.cached_len == 0:
                return None

    def _peak(self, need_len: int) -> list[int]:
        """Per group, the pages that a request holds at most until it has `need_len` tokens."""
        page_len = self._cache.spec.page_len
        return [
            min(peak_pages(group, page_len, need_len, self._chunk_len), pool.num_pages)
            for group, pool in zip(self._cache.spec.groups, self._cache.pools, strict=True)
        ]


def longest_hit(request: Request) -> int:
    """Return how many tokens a request may take from the cache: its last token runs, and so do rows to be scored."""
    longest = request.target_len - 1
    scored = request.next_scored_row
    return longest if scored is None else min(longest, scored)


def _num_held(holding: Holding, group: int) -> int:
    return len(holding.pages[group]) - holding.released[group]
