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

PROBES_PER_STEP = 8
"""Requests per step that fit only if enough of them is cached, and are looked up to find out."""


class Admission:
    """Page arithmetic of one step's starts."""

    def __init__(self, cache: KVCache, chunk_len: int, *, prefix_cache: bool) -> None:
        self._cache = cache
        self._chunk_len = chunk_len
        self._prefix_cache = prefix_cache
        self._spare: list[int] | None = None
        self._probes_left = PROBES_PER_STEP
        self._probed: set[int] = set()

    def begin_step(self) -> None:
        """Forget the last step's arithmetic; requests that were not looked up then come first now."""
        self._spare = None
        if self._probes_left:
            self._probed.clear()
        self._probes_left = PROBES_PER_STEP

    def try_open(self, request: Request, running: Sequence[Request]) -> Holding | None:
        """Open a holding for a waiting request, or return `None` when it does not fit now.

        Args:
            request: Waiting; its tokens are looked up in the prefix index.
            running: All running requests, those started in this step included.
        """
        if self._spare is None:
            self._spare = self._spare_pages(running)
        headroom = len(running)
        need = self._peak(request)
        fits_uncached = all(spare - count >= headroom for spare, count in zip(self._spare, need, strict=True))
        if not fits_uncached and not self._may_probe(request):
            return None
        longest = longest_hit(request) if self._prefix_cache else 0
        while True:
            before = [pool.num_available for pool in self._cache.pools]
            holding = self._cache.open(np.array(request.tokens[:longest], np.int32), request.namespace, longest)
            left = [
                spare - (available - pool.num_available) - max(0, count - _num_held(holding, group))
                for group, (spare, available, pool, count) in enumerate(
                    zip(self._spare, before, self._cache.pools, need, strict=True)
                )
            ]
            if all(pages >= headroom for pages in left):
                self._spare = left
                return holding
            shorter = holding.locked_len if holding.sources and longest == longest_hit(request) else 0
            self._cache.close(holding, None)
            if holding.cached_len == 0:
                return None
            longest = shorter

    def _may_probe(self, request: Request) -> bool:
        if not self._prefix_cache or self._probes_left == 0 or request.sequence in self._probed:
            return False
        self._probes_left -= 1
        self._probed.add(request.sequence)
        return True

    def _peak(self, request: Request) -> list[int]:
        """Per group, pages that the request holds at most before it has drawn its next token but one."""
        length = min(request.target_len + 1, max(request.end_len - 1, request.target_len))
        return [
            min(peak_pages(group, self._cache.spec.page_len, length, self._chunk_len), pool.num_pages)
            for group, pool in zip(self._cache.spec.groups, self._cache.pools, strict=True)
        ]

    def _spare_pages(self, running: Sequence[Request]) -> list[int]:
        spare = [pool.num_available for pool in self._cache.pools]
        for request in running:
            if request.holding is None:
                continue
            for group, peak in enumerate(self._peak(request)):
                spare[group] -= max(0, peak - _num_held(request.holding, group))
        return spare


def longest_hit(request: Request) -> int:
    """Return how many tokens a request may take from the cache: its last token runs, and so do rows to be scored."""
    longest = request.target_len - 1
    scored = request.next_scored_row
    return longest if scored is None else min(longest, scored)


def _num_held(holding: Holding, group: int) -> int:
    return len(holding.pages[group]) - holding.released[group]
