"""Whether a waiting request may start: do the pages that it needs fit beside the others'?

Per KV group::

    free + evictable  -  pages that running requests still take  =  spare
    start when           spare - pages that the match pins - pages that this one still takes  >=  headroom

What a request takes, and what headroom is kept, is the policy (`POLICIES`):

    max-utilization       its known tokens; headroom for what the running ones are expected to grow, at least a page
                          each. As many run as fit; the last started makes room when the guess was wrong
    guaranteed-no-evict   all that it may ever have (`end_len`), and no headroom: whoever started is never preempted
    static-batch          the same, and nobody starts while a batch runs: for comparison

A request takes as much of the cache as fits: with its partly shared last page (one page more while it is copied),
else whole pages only, else nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trivium.cache.kv_cache import Holding, KVCache
from trivium.cache.window import peak_pages
from trivium.schedule.below import Below
from trivium.schedule.output_estimate import OutputEstimate
from trivium.schedule.request import Request

_GROWTH_SHARE = 0.5
"""Share of the expected growth of running requests that is kept free: they end one by one, so that those who end make
room for those who go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is counted as a request's need, and who may start beside whom."""

    reserves_end: bool
    """Whether a request's need is all that it may ever have, not only its known tokens."""
    is_batchwise: bool = False
    """Whether nobody starts while others run, but for those that start in the same step."""


POLICIES: Mapping[str, Policy] = {
    "max-utilization": Policy(reserves_end=False),
    "guaranteed-no-evict": Policy(reserves_end=True),
    "static-batch": Policy(reserves_end=True, is_batchwise=True),
}


class Admission:
    """Page arithmetic of one step's starts."""

    def __init__(self, cache: KVCache, chunk_len: int, policy: Policy, estimate: OutputEstimate, below: Below) -> None:
        """Take over the rules.

        Args:
            cache: Pools and prefix index.
            chunk_len: Most tokens that a request runs in one step.
            policy: One of `POLICIES`.
            estimate: What is known of output lengths.
            below: Brings up what the tiers below have of a prefix.
        """
        self.policy = policy
        self._cache = cache
        self._chunk_len = chunk_len
        self._estimate = estimate
        self._below = below
        self._spare: list[int] = []
        self._headroom = 0.0

    def begin_step(self, running: Sequence[Request]) -> None:
        """Count what is spare when `running` requests have what they need.

        Cost: O(running requests).
        """
        self._headroom = 0.0
        self._spare = [pool.num_available for pool in self._cache.pools]
        for request in running:
            self._headroom += self._growth_pages(request)
            if not self.policy.reserves_end and request.left_len <= 1:
                continue  # a decoding request's next page is what the headroom is for
            for group, peak in enumerate(self._peak(self.need_len(request))):
                self._spare[group] -= max(0, peak - _num_held(request.held, group))

    def need_len(self, request: Request) -> int:
        """Return the KV length for which a request must find room before it starts."""
        return max(request.need_len, request.end_len - 1) if self.policy.reserves_end else request.need_len

    def fits_uncached(self, request: Request) -> bool:
        """Return whether a request fits even if nothing of it is cached."""
        need = self._peak(self.need_len(request))
        return all(spare - count >= self._headroom for spare, count in zip(self._spare, need, strict=True))

    def lacking(self, request: Request) -> list[int]:
        """Return, per group, how many pages are missing for a request; 0 or less where it fits uncached."""
        need = self._peak(self.need_len(request))
        return [math.ceil(count + self._headroom - spare) for spare, count in zip(self._spare, need, strict=True)]

    def try_open(self, request: Request) -> Holding | None:
        """Open a holding for a waiting request, or return `None` when it does not fit now, or pages are coming up.

        Effects:
            What the request still needs, and what it is expected to want next, are no longer spare.
        """
        if min(self._spare) < self._headroom + 1:
            return None  # Whatever is cached, a start takes a page of every group.
        need = self._peak(self.need_len(request))
        longest = longest_hit(request)
        while True:
            before = [pool.num_available for pool in self._cache.pools]
            tokens = request.known_array()[:longest]
            holding = self._cache.open(tokens, request.namespace, longest, request.retention)
            left = [
                spare - (available - pool.num_available) - max(0, count - _num_held(holding, group))
                for group, (spare, available, pool, count) in enumerate(
                    zip(self._spare, before, self._cache.pools, need, strict=True)
                )
            ]
            if all(pages >= self._headroom for pages in left):
                if not self._below.bring(request, holding, longest_hit(request)):
                    self._cache.close(holding, None)
                    return None
                self._spare = left
                self._headroom += self._growth_pages(request)
                return holding
            # Next: whole pages only; if that was it, or a window moved the end into a page again, nothing.
            is_partial = bool(holding.sources) and longest == longest_hit(request)
            longest = holding.locked_len if is_partial else 0
            self._cache.close(holding, None)
            if holding.cached_len == 0:
                return None

    def _growth_pages(self, request: Request) -> float:
        """Return how many pages of every group are kept free for a running request's next tokens."""
        if self.policy.reserves_end:
            return 0.0
        output_len = request.output_len
        expected = self._estimate.expected_len(output_len)
        if expected is None:
            return 1.0
        growth = min(expected - output_len, request.end_len - request.target_len)
        return max(1.0, _GROWTH_SHARE * growth / self._cache.spec.page_len)

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
