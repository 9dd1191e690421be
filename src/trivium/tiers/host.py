"""The host tier: pages of a device's KV pool in ordinary memory, least recently used first out.

For executors whose KV lies in memory of their own. On the CPU executors it would be the same memory twice.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from trivium.tiers.page import StoredPage
from trivium.tiers.tier import NobodyListens, TierStats

if TYPE_CHECKING:
    from trivium.tiers.page import PageFacts, PageRef
    from trivium.tiers.tier import Tier, TierListener


class HostTier:
    """See `tiers.tier.Tier`. Evicted pages go down to `below`, if there is such a tier."""

    name = "host"

    def __init__(self, limit_bytes: int, below: Tier | None = None) -> None:
        self._below = below
        self._pages: OrderedDict[PageRef, StoredPage] = OrderedDict()
        self._stats = TierStats(limit_bytes=limit_bytes)
        self._listener: TierListener = NobodyListens()

    def where(self, ref: PageRef) -> str | None:
        """Return the name of the tier that has this page, this one or one below, or `None`."""
        if ref in self._pages:
            return self.name
        return None if self._below is None else self._below.where(ref)

    def put(self, page: StoredPage) -> None:
        """Keep a page; a larger one than the whole tier goes straight down."""
        stats, ref = self._stats, page.facts.ref
        if ref in self._pages:
            self._pages.move_to_end(ref)
            return
        if page.num_bytes > stats.limit_bytes:
            self._hand_down(page)
            return
        while stats.num_bytes + page.num_bytes > stats.limit_bytes:
            _, oldest = self._pages.popitem(last=False)
            stats.num_bytes -= oldest.num_bytes
            stats.num_evicted += 1
            self._listener.lost([oldest.facts.ref], self.name)
            self._hand_down(oldest)
        self._pages[ref] = page
        stats.num_bytes += page.num_bytes
        stats.num_written += 1
        stats.bytes_written += page.num_bytes
        self._listener.moved(page.facts, self.name)

    def get(self, facts: PageFacts) -> bytes | None:
        """Return the bytes of a page, or `None`; one from below is not moved up: it goes to the device."""
        page = self._pages.get(facts.ref)
        if page is None:
            return None if self._below is None else self._below.get(facts)
        if page.facts.tokens != facts.tokens:
            return None
        self._pages.move_to_end(facts.ref)
        self._stats.num_read += 1
        self._stats.bytes_read += page.num_bytes
        return bytes(page.content)

    def clear(self) -> None:
        """Forget every page, below too."""
        self._pages.clear()
        self._stats.num_bytes = 0
        if self._below is not None:
            self._below.clear()

    def listen(self, listener: TierListener) -> None:
        """Tell `listener` what is here and below, and what becomes of it."""
        self._listener = listener
        if self._pages:
            listener.found(list(self._pages), self.name)
        if self._below is not None:
            self._below.listen(listener)

    def stats(self) -> dict[str, TierStats]:
        """Return the statistics of this tier and of those below, by name."""
        self._stats.num_pages = len(self._pages)
        return {self.name: self._stats, **({} if self._below is None else self._below.stats())}

    def close(self) -> None:
        """Hand everything down, oldest first, and close what is below."""
        for page in self._pages.values():
            self._hand_down(page)
        self._pages.clear()
        self._stats.num_bytes = 0
        if self._below is not None:
            self._below.close()

    def _hand_down(self, page: StoredPage) -> None:
        if self._below is not None:
            self._below.put(page)
