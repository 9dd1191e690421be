"""The KV memory of one model as the scheduler sees it: open a request's holding, grow it, settle it, close it.

Joins the page pools, the prefix index and the window rule. Knows tokens, lengths and page ids; neither requests nor
steps. A `Holding` is one running request's share of the memory::

    positions   0 ............ locked_len ......... computed ........... end of the last page
    pages       | the tree's too, whole   | tree's too, partial | this request's only     |
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from trivium.base.clock import Clock, SystemClock
from trivium.base.ids import PageId
from trivium.base.intmath import ceil_div
from trivium.cache.pages import NO_PAGE, PagePool
from trivium.cache.prefix import NoPrefixIndex, PrefixIndex
from trivium.cache.radix import RadixTree
from trivium.cache.spec import KVSpec
from trivium.cache.window import first_needed

if TYPE_CHECKING:
    from trivium.cache.claims import Claim
    from trivium.cache.page_runs import PageFollower
    from trivium.cache.prefix import TokenArray
    from trivium.cache.retain import RetentionPlan


@dataclass(slots=True, eq=False)
class Holding:
    """The pages of one running request."""

    pages: tuple[list[PageId], ...]
    """Per group, position-aligned; `NO_PAGE` where the window has passed."""
    lock: Any
    """Place in the prefix index, `locked_len` tokens deep."""
    locked_len: int
    cached_len: int
    """Tokens that came from the cache."""
    sources: list[tuple[int, PageId]] = field(default_factory=list)
    """(group, page) to copy the partly shared page from; in use until `confirm_copies`."""
    is_filled: bool = True
    """Whether the pages that `extend` took have their content; until `confirm_copies` they have not."""
    released: list[int] = field(default_factory=list)
    """Per group, pages before this index are out of the window."""
    changed_from: list[int] = field(default_factory=list)
    """Per group, first page index that changed since a reader of `pages` last set it to their number."""
    plan: RetentionPlan | None = None
    """Priorities that the request asked for."""
    has_changed: bool = True
    """Whether `changed_from` has moved down, or `pages` have grown, since the reader last cleared it."""


class KVCache:
    """Page pools and prefix index of one model."""

    def __init__(
        self,
        spec: KVSpec,
        num_pages: Sequence[int],
        *,
        prefix_cache: bool,
        eviction: str = "lru",
        clock: Clock | None = None,
    ) -> None:
        """Make an empty cache.

        Args:
            spec: KV groups and page length.
            num_pages: Pages of each group's pool.
            prefix_cache: Whether prefixes are remembered.
            eviction: A policy of `evict.ORDERS`.
            clock: Ends priorities that were asked for a while; by default the machine's.
        """
        self.spec = spec
        self.pools = tuple(PagePool(count) for count in num_pages)
        self.index: PrefixIndex = (
            RadixTree(spec, self.pools, eviction=eviction, clock=clock or SystemClock())
            if prefix_cache
            else NoPrefixIndex(len(self.pools))
        )
        self._windows = [(idx, group.window) for idx, group in enumerate(spec.groups) if group.window is not None]
        self.has_windows = bool(self._windows)
        self.num_evicted = 0
        """Pages that cached prefixes gave up to make room."""

    def follow(self, follower: PageFollower) -> None:
        """Tell `follower` from now on which pages the prefix index comes to hold, and which it drops.

        Raises:
            InternalError: Something is cached already, of which it would not know.
        """
        self.index.listen(follower)
        for group, pool in enumerate(self.pools):
            pool.on_drop.append(partial(follower.dropped, group))

    def open(self, tokens: TokenArray, namespace: Hashable, max_len: int, plan: RetentionPlan | None = None) -> Holding:
        """Start a holding with the longest cached prefix of `tokens`, at most `max_len` tokens.

        Effects:
            Whole shared pages gain a user. A partly shared page is kept as a source: `grow` takes the page it is
            to be copied to, `copies` names the pair, `confirm_copies` lets the source go.
        """
        match = self.index.match(tokens, namespace, max_len)
        whole = match.length // self.spec.page_len
        sources = []
        for group, (pool, pages) in enumerate(zip(self.pools, match.pages, strict=True)):
            pool.share_all(pages)
            if len(pages) > whole:
                source = pages.pop()
                if source != NO_PAGE:
                    sources.append((group, source))
        holding = Holding(match.pages, None, whole * self.spec.page_len, match.length, sources, plan=plan)
        holding.lock = self.index.lock(match, namespace, plan)
        holding.released = [pages.count(NO_PAGE) for pages in match.pages]
        holding.changed_from = [0] * len(self.pools)
        return holding

    def copies(self, holding: Holding) -> list[tuple[int, PageId, PageId]]:
        """Return (group, source, target) of the page copies that the next step must execute first."""
        at = holding.cached_len // self.spec.page_len
        return [(group, source, holding.pages[group][at]) for group, source in holding.sources]

    def confirm_copies(self, holding: Holding) -> None:
        """Let go of the copied pages: the copies were executed, and so was what fills pages from elsewhere."""
        for group, source in holding.sources:
            self.pools[group].give_back(source)
        holding.sources.clear()
        holding.is_filled = True

    def extend(self, holding: Holding, length: int) -> list[tuple[int, int, PageId]]:
        """Take the pages between what an open holding found and `length`, to be filled from elsewhere before the step.

        Args:
            holding: Just opened.
            length: More tokens than it has, in whole pages; within `longest(holding)`.

        Returns:
            (group, page index, page) of what must be filled; then `length` tokens are computed.

        Effects:
            A partly shared page is let go: it comes as a whole. What `length` puts out of a window is given back.
        """
        first, end = holding.cached_len // self.spec.page_len, length // self.spec.page_len
        self.confirm_copies(holding)
        self.release_window(holding, length)
        taken = []
        for group_idx, (group, pages) in enumerate(zip(self.spec.groups, holding.pages, strict=True)):
            start = max(first, first_needed(length, group.window) // self.spec.page_len)
            pages.extend([NO_PAGE] * (start - first))
            self.grow_group(holding, group_idx, end)
            holding.released[group_idx] = max(holding.released[group_idx], pages.count(NO_PAGE))
            taken += [(group_idx, idx, pages[idx]) for idx in range(start, end)]
        holding.cached_len = length
        holding.is_filled = False
        return taken

    def longest(self, holding: Holding) -> int:
        """Return the length to which the holding can grow with the pages that are free or evictable."""
        room = [len(pages) + pool.num_available for pool, pages in zip(self.pools, holding.pages, strict=True)]
        return min(room) * self.spec.page_len

    def grow(self, holding: Holding, length: int) -> None:
        """Take pages until the holding has `length` tokens, evicting what must go.

        Raises:
            InternalError: `length` exceeds `longest(holding)`.
        """
        total = ceil_div(length, self.spec.page_len)
        for group in range(len(self.pools)):
            self.grow_group(holding, group, total)

    def grow_group(self, holding: Holding, group: int, num_pages: int) -> None:
        """Take pages until the holding has `num_pages` entries in one group."""
        pool, pages = self.pools[group], holding.pages[group]
        count = num_pages - len(pages)
        if count <= 0:
            return
        if pool.num_free < count:
            num_free = pool.num_free
            self.index.evict(group, count)
            self.num_evicted += pool.num_free - num_free
        holding.changed_from[group] = min(holding.changed_from[group], len(pages))
        holding.has_changed = True
        pages.extend(pool.take(count))

    def settle(self, holding: Holding, tokens: TokenArray) -> None:
        """Enter the computed tokens from `locked_len` on into the prefix index, so that others find them.

        Args:
            holding: The request's pages; whole pages that a twin entered first are swapped for the twin's.
            tokens: Computed tokens from `holding.locked_len` on.
        """
        if len(tokens) == 0:
            return
        first = holding.locked_len // self.spec.page_len
        holding.lock = self.index.insert(holding.lock, holding.locked_len, tokens, holding.pages, holding.plan)
        end = holding.locked_len + len(tokens)
        holding.locked_len = end // self.spec.page_len * self.spec.page_len
        for group in range(len(self.pools)):
            holding.changed_from[group] = min(holding.changed_from[group], first)
        holding.has_changed = True

    def release_window(self, holding: Holding, computed_len: int) -> None:
        """Give back the pages that no query at or behind `computed_len` can see."""
        for group, window in self._windows:
            first = first_needed(computed_len, window) // self.spec.page_len
            pages = holding.pages[group]
            for idx in range(holding.released[group], min(first, len(pages))):
                self.pools[group].give_back(pages[idx])
                pages[idx] = NO_PAGE
                holding.changed_from[group] = min(holding.changed_from[group], idx)
                holding.has_changed = True
            holding.released[group] = max(holding.released[group], min(first, len(pages)))

    def close(self, holding: Holding, tokens: TokenArray | None, claim: Claim | None = None) -> None:
        """End a holding: enter its computed tokens, then give every page back.

        Args:
            holding: Not used afterwards.
            tokens: Computed tokens from `holding.locked_len` on, or `None` to enter nothing.
            claim: Who claims what is entered.
        """
        if tokens is not None:
            first = holding.locked_len
            self.settle(holding, tokens)
            if claim is not None:
                self.index.claim(holding.lock, tokens[holding.locked_len - first :], claim)
        self.index.unlock(holding.lock)
        self.confirm_copies(holding)
        for pool, pages in zip(self.pools, holding.pages, strict=True):
            pool.give_back_all(pages)
            pages.clear()
